"""The rules that end a sampling stage before its last step: `stop_at_plateau` and `stop_at_length_clip`.

A rule is checked after each step and at the start of an attempt. It reads only the rows of metrics.jsonl, so a resumed
stage decides like one that was never killed. A stage that ends early is complete: it is exported, evaluated and gated
like any other. `steps` is still the upper bound of its steps and the length of its learning-rate decay, whose rest does
not run. A constant learning rate, as in the RL stages of the papers, is not affected.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeGuard

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.config.node import nearest
from cascade_rl.rl_stages.config.stage import LengthClip, OnPolicyStage, Plateau, Stage

Rows = Sequence[Mapping[str, float]]


@dataclass(frozen=True)
class EarlyStop:
    """The rule that ended a stage after `step` steps, the numbers that it saw, and the reason in words."""

    step: int
    rule: str
    numbers: Mapping[str, float]
    reason: str


def has_rule(stage: Stage) -> TypeGuard[OnPolicyStage]:
    """Whether a rule can end the stage early."""
    return isinstance(stage, OnPolicyStage) and bool(stage.stop_at_length_clip or stage.stop_at_plateau)


def early_stop(stage: OnPolicyStage, rows: Rows) -> EarlyStop | None:
    """The rule that ends the stage now; None if it goes on. `rows` are those of all steps so far, in order.

    Raises UserError for a metric that no row has.
    """
    clip, plateau = stage.stop_at_length_clip, stage.stop_at_plateau
    if not rows:
        return None
    return (clip and _length_clip(clip, rows)) or (plateau and _plateau(plateau, rows)) or None


def _plateau(rule: Plateau, rows: Rows) -> EarlyStop | None:
    values = _values(rule.metric, rows)
    earlier, last = values[-2 * rule.window : -rule.window], values[-rule.window :]
    if len(earlier) < rule.window:
        return None
    before, after = fmean(earlier), fmean(last)
    gain = after - before if rule.better == "higher" else before - after
    if gain >= rule.gain:
        return None
    return EarlyStop(
        int(rows[-1]["step"]),
        "plateau",
        {"before": before, "after": after, "gain": gain},
        f"plateau: mean {rule.metric} {after:.4g} over the last {rule.window} steps, {before:.4g} over the "
        f"{rule.window} before; a gain of {rule.gain:g} was expected",
    )


def _length_clip(rule: LengthClip, rows: Rows) -> EarlyStop | None:
    last = _values("truncated_fraction", rows)[-rule.window :]
    beyond = min(last) > rule.rate if rule.side == "above" else max(last) < rule.rate
    if len(last) < rule.window or not beyond:
        return None
    return EarlyStop(
        int(rows[-1]["step"]),
        "length_clip",
        {"lowest": min(last), "highest": max(last)},
        f"length clip: share of truncated answers {min(last):.3f} to {max(last):.3f} in the last {rule.window} steps, "
        f"{rule.side} {rule.rate:g} in each",
    )


def _values(metric: str, rows: Rows) -> list[float]:
    """The metric in the steps that report it. A step whose answers all lack a score reports no reward."""
    values = [row[metric] for row in rows if metric in row]
    if not values:
        raise UserError(
            f"stop_at_plateau.metric: expected a key of metrics.jsonl, found '{metric}'. "
            f"Did you mean '{nearest(metric, list(rows[-1]))}'?"
        )
    return values
