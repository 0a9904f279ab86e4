"""The formulas of NeMo-Gym's genrm_compare, against numbers computed by hand."""

from collections import Counter

import pytest

from cascade_rl.rl_stages.config.reward_model import LengthTerms
from cascade_rl.rl_stages.rewards.reward_models.aggregation import (
    Judgement,
    all_pairs,
    circular_pairs,
    mean_scores,
    with_length_terms,
)

NO_TERMS = LengthTerms(reasoning=0, answer=0, reasoning_bonus=0, answer_bonus=0)


@pytest.mark.parametrize("count", [2, 3, 16])
def test_all_pairs_are_each_once_and_either_answer_first(count: int) -> None:
    pairs = all_pairs(count)
    assert len({frozenset(pair) for pair in pairs}) == len(pairs) == count * (count - 1) // 2
    first = Counter(one for one, _ in pairs)
    assert all(abs(2 * first[index] - (count - 1)) <= 1 for index in range(count))


def test_circular_pairs() -> None:
    assert circular_pairs(4, [1]) == [(0, 1), (1, 2), (2, 3), (3, 0)]
    assert len(circular_pairs(16, [1, 2])) == 32
    assert circular_pairs(2, [1, 2]) == [(0, 1), (1, 0)]  # nobody is compared with itself


@pytest.mark.parametrize(
    ("judgement", "scores"),
    [((4, 2, 2), (4, 2)), ((3, 3, 2), (4.5, 1.5)), ((5, 5, 6), (2.5, 7.5)), ((1, 1, 1), (3.5, -1.5))],
)
def test_a_tie_is_moved_apart_by_the_ranking(judgement: tuple, scores: tuple) -> None:
    assert Judgement(*judgement).scores() == scores


def test_the_mean_is_over_the_comparisons_that_there_are() -> None:
    judgements = {(0, 1): Judgement(4, 2, 2), (1, 2): Judgement(3, 3, 5)}
    assert mean_scores(4, judgements) == [4.0, 1.75, 4.5, None]


def test_length_terms_are_relative_to_the_group() -> None:
    scores = with_length_terms([4, 3, 5, 2, 1], [10, 0, 30, 20, 20], [5, 10, 15, 20, 25], LengthTerms())
    assert scores == pytest.approx([4.35, 3.0 + 0.8 / 3 + 0.125, 5 - 0.7 / 3, 2 - 0.2 / 3 - 0.125, 1 - 0.2 / 3 - 0.25])


def test_equal_lengths_change_nothing() -> None:
    assert with_length_terms([4, 3], [7, 7], [0, 0], LengthTerms(reasoning_bonus=0)) == [4, 3]


@pytest.mark.parametrize(("rank", "bonus"), [(0, 1.0), (2, 1.0), (3, 0.0), (15, 0.0)])
def test_the_shortest_of_sixteen_gets_the_bonuses_if_it_is_among_the_best_three(rank: int, bonus: float) -> None:
    scores = [5 - 0.25 * index for index in range(16)]
    lengths = [20] * 16
    lengths[rank] = 10
    lengths[5] = 0  # nothing is not short
    terms = LengthTerms(reasoning=0, answer=0)
    expected = [score + bonus * (index == rank) for index, score in enumerate(scores)]
    assert with_length_terms(scores, lengths, lengths, terms) == pytest.approx(expected)


def test_bonuses_are_apart() -> None:
    terms = LengthTerms(reasoning=0, answer=0, reasoning_bonus=0.3, answer_bonus=0.2, top_fraction=1.0)
    assert with_length_terms([1, 2], [5, 9], [9, 5], terms) == pytest.approx([1.3, 2.2])
    assert with_length_terms([1, 2], [5, 9], [9, 5], NO_TERMS) == [1, 2]
