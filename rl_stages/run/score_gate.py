"""Gates: how much of a domain's held-out score a stage may lose."""

from collections.abc import Mapping
from dataclasses import dataclass

GATE_CLOSED = 3  # exit code of a stage that lost more than its gate allows


@dataclass(frozen=True)
class GateVerdict:
    """The loss in one domain, and the loss that the gate allows."""

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
    """Compares held-out scores before and after the stage. A gain is a negative loss."""
    return tuple(GateVerdict(domain, before[domain] - after[domain], allowed) for domain, allowed in gate.items())
