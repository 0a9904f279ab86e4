"""How far two sides' log-probs of the same tokens are apart. Torch-free."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

TAIL = 0.999

Sides = tuple[Sequence[np.ndarray], Sequence[np.ndarray]]
"""Two sides' log-probs of the same tokens, float32 [n - 1] of each sequence."""


@dataclass(frozen=True)
class Gap:
    """Of |difference| in nats: the largest, the quantile TAIL, the mean; the mean of exp|difference|. NaN if any is."""

    max: float
    tail: float
    mean: float
    tme: float

    def worst(self, exact: bool) -> tuple[str, float]:
        """Name and size of the gap that a bound on single tokens applies to.

        exact  both sides compute in float32, so that every token must agree. In bfloat16 single tokens differ by nats
               (NVIDIA-NeMo/RL#2100): a maximum over 100,000 tokens would refuse every run
        """
        return ("largest gap", self.max) if exact else (f"{100 * TAIL:g}th percentile of the gap", self.tail)


def gap_of(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> Gap:
    """The gap between two sides, float32 [n - 1] of each sequence."""
    gaps = gaps_of((one, other))
    tail = float(np.quantile(gaps, TAIL))
    return Gap(float(gaps.max()), tail, float(gaps.mean()), float(np.exp(gaps).mean()))


def gaps_of(sides: Sides) -> np.ndarray:
    """float64 [tokens of all sequences]"""
    return np.abs(np.concatenate(sides[0]).astype(np.float64) - np.concatenate(sides[1]))
