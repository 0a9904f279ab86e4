"""Gates: how much of an earlier domain's held-out score a stage may lose."""

from collections.abc import Mapping
from dataclasses import dataclass

GATE_CLOSED = 3  # exit code of a stage that lost more than it may


@dataclass(frozen=True)
class GateVerdict:
    """One domain's loss against what the stage may lose."""

    domain: str
    lost: float
    allowed: float

    @property
    def passed(self) -> bool:
        return self.lost <= self.allowed

    def __str__(self) -> str:
        return f"{self.domain} lost {self.lost:.3f}, allowed {self.allowed:.3f}"


def verdicts(
    gate: Mapping[str, float], before: Mapping[str, float], after: Mapping[str, float]
) -> tuple[GateVerdict, ...]:
    """Held-out scores "before" and "after" the stage; a gain is a loss below 0."""
    return tuple(GateVerdict(domain, before[domain] - after[domain], allowed) for domain, allowed in gate.items())
