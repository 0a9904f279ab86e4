"""From comparisons of pairs of answers to one reward each (facts/paper.md 5.4: NeMo-Gym's `genrm_compare`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

RANKING_MIDPOINT = 3.5

Pair = tuple[int, int]


@dataclass(frozen=True)
class Judgement:
    """What a judge says of two answers.

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
        """Both scores; of a tie, moved apart by the ranking."""
        lead = RANKING_MIDPOINT - self.ranking if self.is_tie else 0.0
        return self.score_1 + lead, self.score_2 - lead


@dataclass(frozen=True)
class LengthTerms:
    """Weights of what conciseness adds to a score; 0 turns a term off. Lengths are characters.

    Defaults: Nano-v3's report, which Cascade 2 says that it follows ("the same as Nano-v3"). Super's released
    configuration has .3, .35, .5, .5, and a style term, which is not built; no released one is Cascade 2's.

    reasoning, answer              of the group-relative terms
    reasoning_bonus, answer_bonus  for the shortest of the group, if its score is among the best
    top_fraction                   how much of the group the best are
    """

    reasoning: float = 0.5
    answer: float = 0.5
    reasoning_bonus: float = 0.5
    answer_bonus: float = 0.5
    top_fraction: float = 0.2


def all_pairs(count: int) -> list[Pair]:
    """Each pair once. Every answer comes first in half of its pairs, give or take one: judges prefer a place.

    The original puts the lower index first, always.
    """
    return [(i, j) if (i + j) % 2 else (j, i) for i, j in combinations(range(count), 2)]


def circular_pairs(count: int, offsets: Sequence[int]) -> list[Pair]:
    """Each answer against the ones `offsets` places further, in a circle: once first and once second for each."""
    return [(i, (i + offset) % count) for offset in offsets if offset % count for i in range(count)]


def mean_scores(count: int, judgements: Mapping[Pair, Judgement]) -> list[float | None]:
    """Mean of each answer's scores over its comparisons; None for an answer that has none.

    The original counts a comparison that failed as 3 : 3.
    """
    found: list[list[float]] = [[] for _ in range(count)]
    for pair, judgement in judgements.items():
        for index, score in zip(pair, judgement.scores(), strict=True):
            found[index].append(score)
    return [sum(scores) / len(scores) if scores else None for scores in found]


def with_length_terms(
    scores: Sequence[float], reasoning: Sequence[int], answers: Sequence[int], terms: LengthTerms
) -> list[float]:
    """Scores of a group plus the bonuses, in this order, and the group-relative terms.

    The gate of the bonuses is that of the code: the shortest of all gets one, if its score reaches that of the
    last of the best. The papers' words fit the shortest among the best too.
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
    """Index of the first of the shortest that are not empty."""
    return min((index for index, length in enumerate(lengths) if length), key=lengths.__getitem__, default=None)


def _brevity(lengths: Sequence[int]) -> list[float]:
    """1 for the shortest to 0 for the longest, less the mean of the group; 0 where all are alike."""
    low, high = min(lengths), max(lengths)
    raw = [(high - length) / (high - low) if high > low else 0.0 for length in lengths]
    return [weight - sum(raw) / len(raw) for weight in raw]
