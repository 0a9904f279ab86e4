"""Which groups a step learns from, if that is for their ends to say."""

from collections.abc import Iterable

import pytest

from cascade_rl.rl_stages.ending_order import EndingOrder, Group

PROMPTS, SAMPLES = 3, 2


def names(step: int) -> list[list[str]]:
    return [[f"{step}/{place}/{i}" for i in range(SAMPLES)] for place in range(PROMPTS)]


def begun(steps: Iterable[int], recorded: dict[int, list[Group]] | None = None, first_step: int = 0) -> EndingOrder:
    order = EndingOrder(recorded or {}, first_step)
    for step in steps:
        order.begin(step, names(step), "settings")
    return order


def end(order: EndingOrder, *groups: Group) -> None:
    for step, place in groups:
        for name in names(step)[place]:
            order.end(name)


def test_a_step_learns_from_what_ended_first_but_leaves_nothing_a_second_time() -> None:
    order = begun((0, 1))
    end(order, (1, 2), (0, 1))
    assert order.groups_of(0) is None
    order.end("0/2/0")
    order.end("0/2/0")  # known
    order.end("of nobody")
    assert order.groups_of(0) is None
    order.end("0/2/1")
    assert order.take(0) == [(0, 1), (0, 2), (1, 2)]
    order.begin(2, names(2), "settings")
    end(order, (2, 0), (1, 1), (2, 1))
    assert order.groups_of(1) is None  # 0/0 would be too old for step 2
    end(order, (0, 0))
    assert order.take(1) == [(0, 0), (1, 1), (2, 0)]
    end(order, (2, 2))
    assert order.groups_of(2) is None  # 1/0
    end(order, (1, 0))
    assert order.take(2) == [(1, 0), (2, 1), (2, 2)]


def test_what_was_chosen_once_is_chosen_again_whatever_ends_first() -> None:
    order = begun((0, 1), {0: [(0, 0), (0, 1), (1, 1)]})
    end(order, (1, 0), (1, 2), (1, 1), (0, 1))
    assert order.groups_of(0) is None
    end(order, (0, 0))
    assert order.take(0) == [(0, 0), (0, 1), (1, 1)]
    end(order, (0, 2))
    assert order.take(1) == [(0, 2), (1, 0), (1, 2)]


def test_what_was_learned_before_an_attempt_is_not_learned_again() -> None:
    order = begun((0, 1, 2), {0: [(0, 0), (0, 1), (1, 2)]}, first_step=1)
    assert order.learned == [(0, 0), (0, 1), (1, 2)]
    end(order, *[(step, place) for step in (0, 1) for place in range(PROMPTS)], (2, 1))
    assert order.take(1) == [(0, 2), (1, 0), (1, 1)]


def test_groups_of_other_settings_wait_for_a_step_of_theirs() -> None:
    order = begun((1,), {0: [(1, 0)]}, first_step=1)
    order.begin(2, names(2), "longer answers")
    order.begin(3, names(3), "settings")
    end(order, (2, 0), (3, 2), (1, 1), (1, 2))
    assert order.take(1) == [(1, 1), (1, 2), (3, 2)]


@pytest.mark.parametrize("ends", [[(1, 0), (1, 1), (0, 0)], [(0, 0), (1, 1), (1, 0)]])
def test_a_batch_has_the_order_of_starting(ends: list[Group]) -> None:
    order = begun((0, 1))
    end(order, *ends)
    assert order.take(0) == [(0, 0), (1, 0), (1, 1)]
