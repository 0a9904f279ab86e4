"""Difficulty filter on a row's `pass_rate`, the share of a model's answers that were correct."""

from __future__ import annotations

from dataclasses import dataclass

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.core.messages import shown
from cascade_rl.rl_stages.data.rows import Row


@dataclass(frozen=True)
class PassRateFilter:
    """Keeps the rows whose pass rate is in [low, high]."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high <= 1:
            raise UserError(f"expected pass rates 0 <= LOW <= HIGH <= 1; found {self.low} and {self.high}")

    def __call__(self, row: Row) -> str | None:
        """Why the row is dropped; None if it is kept. Raises UserError for a row without a pass rate in [0, 1]."""
        rate = row.get("pass_rate")
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate <= 1:
            raise UserError(f"expected 'pass_rate' to be a number in [0, 1]; found {shown(rate)}")
        if rate < self.low:
            return f"pass rate below {self.low:g}"
        return f"pass rate above {self.high:g}" if rate > self.high else None
