"""How long a step takes, from who works in it and who waits for whom."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

DRAW = frozenset({"engine", "verify"})
REFIT = "refit"

Way = Literal["in turn", "ahead", "in flight"]
"""How engines and trainer share a step."""


@dataclass(frozen=True)
class Pace:
    """Seconds of a step by who works.

    draw   engines, and the programs that verifiers run
    learn  the trainer, from the first log-prob to the optimizer
    refit  new weights for the engines
    flow   `draw` in the long run, if samples of later steps are in flight beside those of this one
    """

    draw: float
    learn: float
    refit: float
    flow: float

    @property
    def in_turn(self) -> float:
        """A step if everybody waits for the one before."""
        return self.draw + self.learn + self.refit

    @property
    def ahead(self) -> float:
        """A step if the next one is drawn while the trainer learns. New weights wait for the last sample in flight."""
        return max(self.draw, self.learn) + self.refit

    @property
    def in_flight(self) -> float:
        """A step in the long run if new weights arrive while samples run."""
        return max(self.flow, self.learn + self.refit)


STEP: Mapping[Way, Callable[[Pace], float]] = {
    "in turn": lambda pace: pace.in_turn,
    "ahead": lambda pace: pace.ahead,
    "in flight": lambda pace: pace.in_flight,
}


def way_of(max_staleness: int) -> Way:
    if not max_staleness:
        return "in turn"
    return "ahead" if max_staleness == 1 else "in flight"


def pace_of(seconds: Mapping[str, float], flow: float) -> Pace:
    """`seconds` of each phase of a step by its name. `flow` of the engines alone."""
    learn = sum(value for phase, value in seconds.items() if phase not in DRAW | {REFIT})
    draw = sum(seconds.get(phase, 0.0) for phase in DRAW)
    return Pace(draw, learn, seconds.get(REFIT, 0.0), max(flow, seconds.get("verify", 0.0)))
