"""Turns joined into one rollout: weight versions, and turns that do not belong together."""

from dataclasses import replace

import numpy as np
import pytest

from cascade_rl.engine.core.rollouts import Kept, Rollout
from cascade_rl.rl_stages.scoring.turns import join


def turn(prompt: list[int], answer: list[int], *versions: tuple[int, int]) -> Rollout:
    logprobs = -np.array(answer, np.float32)
    return Rollout("a", np.array(prompt), np.array(answer), logprobs, None, versions or ((0, 0),), "stop")


def test_a_version_span_begins_where_another_version_generates_first() -> None:
    first = turn([1, 2], [3, 4, 5], (7, 0), (8, 2))
    same = turn([1, 2, 3, 4, 5, 90], [6], (8, 0))
    newer = turn([1, 2, 3, 4, 5, 90, 6, 91, 92], [9, 10], (8, 0), (9, 1))
    whole = join([first, same, newer])
    assert whole.versions == ((7, 0), (8, 2), (9, 8))
    assert whole.token_ids.tolist() == [3, 4, 5, 90, 6, 91, 92, 9, 10]
    assert whole.token_ids[8] == newer.token_ids[1]
    assert whole.logprobs.tolist() == [-3, -4, -5, 0, -6, 0, 0, -9, -10]
    assert (whole.length, whole.turns, whole.routes) == (6, 3, None)


def test_kept_tokens_stay_with_the_tokens_that_were_drawn_from_them() -> None:
    """The second turn was drawn from the whole vocabulary, what lies between turns from nothing."""
    first = replace(turn([1, 2], [3, 4]), kept=Kept(np.array([3, 8, 4]), np.array([2, 1])))
    second = turn([1, 2, 3, 4, 90], [6])
    third = replace(turn([1, 2, 3, 4, 90, 6, 91], [7]), kept=Kept(np.array([5, 7]), np.array([2])))
    kept = join([first, second, third]).kept
    assert kept is not None
    assert kept.ids.tolist() == [3, 8, 4, 5, 7]
    assert kept.counts.tolist() == [2, 1, 0, 0, 0, 2]
    assert join([second, replace(third, kept=None)]).kept is None


def test_one_turn_is_the_rollout_itself() -> None:
    only = turn([1, 2], [3])
    assert join([only]) is only
    assert (only.length, only.generated) == (1, None)


def test_a_turn_that_does_not_go_on_from_the_one_before_is_refused() -> None:
    with pytest.raises(ValueError, match="does not begin with the tokens of the turns before"):
        join([turn([1, 2], [3]), turn([1, 2, 4, 90], [5])])
