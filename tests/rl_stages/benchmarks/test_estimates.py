from itertools import combinations
from statistics import fmean

import numpy as np
import pytest

from cascade_rl.rl_stages.benchmarks.estimates import difference, majority, over_prompts, pass_at, sizes


@pytest.mark.parametrize("scores", [[1.0, 0.0, 0.0, 1.0, 0.3], [0.0] * 4, [1.0] * 3, [0.5, 0.51]])
def test_pass_at_k_is_the_mean_over_all_choices_of_k_answers(scores):
    for k in range(1, len(scores) + 1):
        chosen = [float(any(score > 0.5 for score in some)) for some in combinations(scores, k)]
        assert pass_at(k, scores) == pytest.approx(fmean(chosen))


@pytest.mark.parametrize(("answers", "expected"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])])
def test_k_doubles_up_to_the_number_of_answers(answers, expected):
    assert sizes(answers) == expected


def test_the_interval_holds_the_true_mean_in_95_of_100_evaluations():
    """Also where the answers to a prompt are all alike: the prompts are counted, not the answers."""
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(2000):
        prompts = rng.random(40) < 0.6  # a prompt is solved always or never
        found = over_prompts([fmean([float(solved)] * 8) for solved in prompts])
        held += abs(found.mean - 0.6) <= found.half
    assert 0.92 < held / 2000 < 0.97


def test_a_single_prompt_has_no_interval():
    assert over_prompts([0.25]) == (0.25, None)
    assert str(over_prompts([0.25])) == "0.250"


def test_a_difference_is_paired_by_prompt():
    """Two models that solve the same hard and easy prompts differ by exactly as much on each."""
    one = {"easy": 0.9, "hard": 0.1, "gone": 0.5}
    other = {"easy": 1.0, "hard": 0.2, "new": 0.0}
    found = difference(one, other)
    assert found.mean == pytest.approx(0.1)
    assert found.half == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(
    ("votes", "scores", "expected"),
    [
        (["7", "7", "8"], [1.0, 1.0, 0.0], 1.0),
        (["8", "7", "8"], [0.0, 1.0, 0.0], 0.0),
        (["7", "8", None], [1.0, 0.0, 0.0], 0.5),
        ([None, None, "7"], [0.0, 0.0, 1.0], 1.0),
        ([None, None], [0.0, 0.0], 0.0),
    ],
)
def test_what_most_say_is_scored(votes, scores, expected):
    assert majority(votes, scores) == expected
