"""Markers by what a test starts, and the failure of one that starts something without a marker."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tests import tiers
from tests.gloo import run_ranks


class Stage:
    def ranks(self) -> Any:
        return [run_ranks(2, rank) for rank in (int, str)]


def by_a_class() -> Any:
    return Stage().ranks()


def without() -> int:
    return len("run_ranks")


def item(function: Any, *markers: str) -> Any:
    found = list(markers)
    return SimpleNamespace(
        obj=function,
        _fixtureinfo=SimpleNamespace(name2fixturedefs={}),
        add_marker=found.append,
        get_closest_marker=lambda name: name if name in found else None,
        markers=found,
    )


@pytest.mark.parametrize(("function", "markers"), [(by_a_class, ["ranks"]), (without, ["pure"]), (len, ["pure"])])
def test_a_test_is_marked_by_the_names_that_it_reaches(function: Any, markers: list[str]) -> None:
    marked = item(function)
    tiers.mark(marked)
    assert marked.markers == markers


def test_a_marker_of_its_own_stays_and_is_enough() -> None:
    marked = item(without, "slow")
    tiers.mark(marked)
    assert marked.markers == ["slow"]


@pytest.mark.parametrize("event", tiers.EVENTS)
def test_a_pure_test_may_start_no_process(event: str) -> None:
    sys.audit(event, "child", ("child",))
    with pytest.raises(pytest.fail.Exception, match=f"found .*{event}"):
        tiers.check_what_was_started(item(without, "pure"))
    tiers.check_what_was_started(item(without, "ranks"))
    tiers.forget_what_was_started()
    tiers.check_what_was_started(item(without, "pure"))
