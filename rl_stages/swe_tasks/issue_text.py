"""An issue as a user would file it, made from the failing tests' messages. The tests themselves stay hidden."""

from __future__ import annotations

import re
from collections.abc import Mapping

SHOWN_FAILURES = 3

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # differs from run to run


def issue_text(package: str, failures: Mapping[str, str]) -> str:
    """The issue of `failures`, the message of each failing test by its node id. Deterministic."""
    names = sorted(failures)
    shown = [f"* {_topic(name)}: {_first_line(failures[name])}" for name in names[:SHOWN_FAILURES] if failures[name]]
    left = len(names) - SHOWN_FAILURES
    more = [f"{left} more checks fail."] if left > 0 else []
    return "\n".join([f"{package} misbehaves in {', '.join(map(_topic, names[:SHOWN_FAILURES]))}.", *shown, *more])


def _topic(test: str) -> str:
    """`tests/test_a.py::TestB::test_c_d[1]` as "c d"."""
    return test.rpartition("::")[2].partition("[")[0].removeprefix("test_").replace("_", " ")


def _first_line(message: str) -> str:
    return _ADDRESS.sub("", message.splitlines()[0])
