"""Mixes sources in given shares. Which source a position of the stream has depends on shares and position alone."""

from collections.abc import Sequence
from fractions import Fraction
from math import lcm


class Blend:
    """Item n of a source with share w is due at (n + 1/2) / w. The stream has the items in the order of these times.

    So a source has w N of the first N items, to within the number of sources, and no state is stored.
    """

    def __init__(self, weights: Sequence[Fraction]) -> None:
        scale = lcm(*(weight.denominator for weight in weights))
        self.weights = [int(weight * scale) for weight in weights]
        self.total = sum(self.weights)

    def at(self, position: int) -> tuple[int, int]:
        """The source of the item at `position`, and the item's index in that source. All count from 0."""
        taken = self._taken(max(0, position - len(self.weights)))
        while sum(taken) < position:
            taken[self._next(taken)] += 1
        source = self._next(taken)
        return source, taken[source]

    def _taken(self, time: int) -> list[int]:
        """Items of each source that are due by `time`: in all at most `time` plus the number of sources."""
        return [(2 * time * weight + self.total) // (2 * self.total) for weight in self.weights]

    def _next(self, taken: Sequence[int]) -> int:
        due = [Fraction(2 * count + 1, weight) for count, weight in zip(taken, self.weights, strict=True)]
        return due.index(min(due))
