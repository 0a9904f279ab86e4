"""Sources drawn in given shares: who comes at a place of the stream is a function of the shares and the place alone."""

from collections.abc import Sequence
from fractions import Fraction
from math import lcm


class Blend:
    """Draw n of a source of share w is due at (n + 1/2) / w; the draws come in the order in which they are due.

    So among the first N draws a source has w N of them, to within the number of sources, and nothing is stored.
    """

    def __init__(self, weights: Sequence[Fraction]) -> None:
        scale = lcm(*(weight.denominator for weight in weights))
        self.weights = [int(weight * scale) for weight in weights]
        self.total = sum(self.weights)

    def at(self, position: int) -> tuple[int, int]:
        """The source of the draw at `position` and how many of its draws came before, both counting from 0."""
        taken = self._taken(max(0, position - len(self.weights)))
        while sum(taken) < position:
            taken[self._next(taken)] += 1
        source = self._next(taken)
        return source, taken[source]

    def _taken(self, time: int) -> list[int]:
        """Draws of each source that are due until `time`, which is at most that many draws and as many as sources."""
        return [(2 * time * weight + self.total) // (2 * self.total) for weight in self.weights]

    def _next(self, taken: Sequence[int]) -> int:
        due = [Fraction(2 * count + 1, weight) for count, weight in zip(taken, self.weights, strict=True)]
        return due.index(min(due))
