"""Turns comparisons of pairs of answers into one reward for each answer.

The original is NeMo-Gym's `genrm_compare` (NVIDIA-NeMo/Gym, resources_servers/genrm_compare/utils.py at 07d6b0d0).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from cascade_rl.rl_stages.config.reward_model import LengthTerms

RANKING_MIDPOINT = 3.5

Pair = tuple[int, int]


@dataclass(frozen=True)
class Judgement:
    """A judge's judgement of two answers.

    score_1, score_2  helpfulness of each, 1 to 5
    ranking           1 (the first is much better) to 6 (the second is much better)
    """

    score_1: float
    score_2: float
    ranking: float

    @property
    def is_tie(self) -> bool:
        return self.score_1 == self.score_2

    def scores(self) -> tuple[float, float]:
        """Both scores. Those of a tie are moved apart by the ranking."""
        lead = RANKING_MIDPOINT - self.ranking if self.is_tie else 0.0
        return self.score_1 + lead, self.score_2 - lead


def all_pairs(count: int) -> list[Pair]:
    """Each pair once. Every answer comes first in half of its pairs, give or take one, as judges have a position bias.

    The original always puts the lower index first.
    """
    return [(i, j) if (i + j) % 2 else (j, i) for i, j in combinations(range(count), 2)]


def circular_pairs(count: int, offsets: Sequence[int]) -> list[Pair]:
    """Each answer against those `offsets` positions further, in a circle: per offset once first and once second."""
    return [(i, (i + offset) % count) for offset in offsets if offset % count for i in range(count)]


def mean_scores(count: int, judgements: Mapping[Pair, Judgement]) -> list[float | None]:
    """Mean of each answer's scores over its comparisons; None for an answer without comparisons.

    The original counts a failed comparison as 3 : 3.
    """
    found: list[list[float]] = [[] for _ in range(count)]
    for pair, judgement in judgements.items():
        for index, score in zip(pair, judgement.scores(), strict=True):
            found[index].append(score)
    return [sum(scores) / len(scores) if scores else None for scores in found]


def with_length_terms(
    scores: Sequence[float], reasoning: Sequence[int], answers: Sequence[int], terms: LengthTerms
) -> list[float]:
    """Scores of a group plus the bonuses, reasoning first, and the group-relative length terms.

    reasoning, answers  lengths in characters; 0 if there is none

    The gate of the bonuses is that of the original's code: the shortest of all gets a bonus if its score reaches the
    lowest score of the top fraction. The papers' wording also fits the shortest within the top fraction.
    """
    best = max(1, int(len(scores) * terms.top_fraction))
    threshold = sorted(scores, reverse=True)[best - 1]
    adjusted = list(scores)
    for lengths, bonus in ((reasoning, terms.reasoning_bonus), (answers, terms.answer_bonus)):
        shortest = _shortest(lengths)
        if shortest is not None and scores[shortest] >= threshold:
            adjusted[shortest] += bonus
    brevities = zip(_brevity(reasoning), _brevity(answers), strict=True)
    return [
        score + terms.reasoning * thought + terms.answer * answer
        for score, (thought, answer) in zip(adjusted, brevities, strict=True)
    ]


def _shortest(lengths: Sequence[int]) -> int | None:
    """Index of the shortest one that is not empty, the first of several."""
    return min((index for index, length in enumerate(lengths) if length), key=lengths.__getitem__, default=None)


def _brevity(lengths: Sequence[int]) -> list[float]:
    """1 for the shortest to 0 for the longest, minus the mean of the group; 0 if all are equal."""
    low, high = min(lengths), max(lengths)
    raw = [(high - length) / (high - low) if high > low else 0.0 for length in lengths]
    return [weight - sum(raw) / len(raw) for weight in raw]
