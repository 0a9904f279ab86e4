"""Several scored answers a prompt, as numbers with 95 % confidence intervals.

The prompts are the independent draws, not the answers: those to one prompt are alike. So every number is a mean over
prompts, and its interval comes from their spread (clustered standard errors, arXiv 2411.00640, section 2).
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from math import comb, sqrt
from statistics import fmean, stdev
from typing import NamedTuple

PASS = 0.5  # an answer passes with a score above this
Z = 1.96  # half of a 95 % interval, in standard errors


class Estimate(NamedTuple):
    """`half`: half of its interval; None for a single prompt, whose spread is unknown."""

    mean: float
    half: float | None

    def __str__(self) -> str:
        return f"{self.mean:.3f}" if self.half is None else f"{self.mean:.3f} ± {self.half:.3f}"


def over_prompts(values: Sequence[float]) -> Estimate:
    """The mean of one value a prompt."""
    return Estimate(fmean(values), Z * stdev(values) / sqrt(len(values)) if len(values) > 1 else None)


def difference(one: Mapping[str, float], other: Mapping[str, float]) -> Estimate:
    """Of the means of two models over the prompts that both have, paired by prompt: its interval is narrower than those
    of the two means together (arXiv 2411.00640, section 4)."""
    return over_prompts([other[prompt] - one[prompt] for prompt in one.keys() & other.keys()])


def sizes(answers: int) -> list[int]:
    """The k of pass@k: the powers of two up to the number of answers, and this number."""
    return sorted({*(1 << power for power in range(answers.bit_length())), answers})


def pass_at(k: int, scores: Sequence[float]) -> float:
    """The unbiased chance that one of k answers to a prompt passes (arXiv 2107.03374, eq. 1)."""
    wrong = sum(score <= PASS for score in scores)
    return 1.0 - comb(wrong, k) / comb(len(scores), k)


def majority(votes: Sequence[str | None], scores: Sequence[float]) -> float:
    """The score of what most answers say; the mean of several that are said equally often, 0 if none says anything."""
    said = Counter(vote for vote in votes if vote is not None)
    if not said:
        return 0.0
    of_vote: defaultdict[str, list[float]] = defaultdict(list)
    for vote, score in zip(votes, scores, strict=True):
        if vote is not None and said[vote] == max(said.values()):
            of_vote[vote].append(score)
    return fmean(fmean(found) for found in of_vote.values())
