"""The learning rate as a pure function of the step, so that a resumed run computes the same.

Projects with a scheduler that counts got the rate wrong after a resume (slime#1152, prime-rl#1095), or
subtracted the warm-up twice, which left the last tenth of a run at rate 0 (AReaL#1289).
"""

import math
from collections.abc import Callable

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.settings import OptimizerConfig

# Share of (lr - min_lr) that is left after a share of the decay steps has passed.
_REMAINING: dict[str, Callable[[float], float]] = {
    "constant": lambda passed: 1.0,
    "linear": lambda passed: 1.0 - passed,
    "cosine": lambda passed: 0.5 * (1.0 + math.cos(math.pi * passed)),
}


def learning_rate(step: int, optimizer: OptimizerConfig, total_steps: int) -> float:
    """The rate of update number `step`, counted from 0.

    Warm-up is linear: update 0 uses `warmup_init_lr`, update `warmup_steps` is the first at `lr`. Decay then
    reaches `min_lr` at step `schedule_steps`, or `total_steps` without it; the last update, one before, is still
    above it. Later steps stay at `min_lr`. A constant schedule has no decay and ignores `min_lr`.

    Raises UserError for an unknown schedule.
    """
    if optimizer.schedule not in _REMAINING:
        known = ", ".join(_REMAINING)
        raise UserError(f"optimizer schedule must be one of {known}; found {optimizer.schedule!r}")
    if step < optimizer.warmup_steps:
        warm = step / optimizer.warmup_steps
        return optimizer.warmup_init_lr + warm * (optimizer.lr - optimizer.warmup_init_lr)
    decay_steps = max((optimizer.schedule_steps or total_steps) - optimizer.warmup_steps, 1)
    passed = min((step - optimizer.warmup_steps) / decay_steps, 1.0)
    return optimizer.min_lr + _REMAINING[optimizer.schedule](passed) * (optimizer.lr - optimizer.min_lr)
