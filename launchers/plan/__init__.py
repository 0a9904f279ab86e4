"""Estimates on a CPU what a cascade needs on a given GPU: memory, time and storage. Reading order:

hardware        GPUs and assumptions (hardware.toml)
model           the sizes that the formulas need, from a config.json
activations     bytes that a training pass keeps per token, by kind of layer
trainer_memory  memory of a trainer rank
engine_memory   memory of an engine worker
workload        tokens per step, and lengths of sequences
step_time       seconds of each phase
storage         files of a stage
pace            how long a step takes, by who works and who waits
stage_plan      the plan of a stage: problems, phases, cache, cost
search.mend     the nearest layouts that fit
search.split    the GPUs of a stage, shared between trainer and engines in several ways
cascade_plan    the plan of all stages
table, command  the tables, and the command line

Torch-free.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cascade_rl.launchers.plan.cascade_plan import Plan
    from cascade_rl.rl_stages.config.cascade import Cascade


def plan(cascade: "Cascade", hardware: str) -> "Plan":
    """The plan of a cascade on a GPU of hardware.toml. Raises UserError for an unknown GPU or model."""
    from cascade_rl.launchers.plan.cascade_plan import plan_cascade
    from cascade_rl.launchers.plan.hardware import read_hardware

    return plan_cascade(cascade, *read_hardware(hardware))


def text(cascade: "Cascade", hardware: str) -> str:
    """`plan` as plain-text tables."""
    from cascade_rl.launchers.plan.table import plain_text

    return plain_text(plan(cascade, hardware))
