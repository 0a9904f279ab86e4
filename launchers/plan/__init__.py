"""What a cascade needs and takes on a given GPU, computed beforehand on any CPU. Reading order:

hardware        the stated table and the assumptions (hardware.toml)
model           what the formulas read of a config.json
activations     bytes that a training pass keeps for each token, by kind of layer
trainer_memory, engine_memory     terms of a trainer rank and of an engine's worker
workload        how many tokens a step has, and how long they are
step_time       seconds of each phase
storage         files of a stage
stage_plan      a stage: problems, phases, cache, cost
mend            the nearest layouts that fit, found by planning them
cascade_plan    all stages of a cascade
table, command  the text, and the command line

Free of torch.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cascade_rl.launchers.plan.cascade_plan import Plan
    from cascade_rl.rl_stages.config.cascade import Cascade


def plan(cascade: "Cascade", hardware: str) -> "Plan":
    """The plan of a cascade on GPUs named in hardware.toml. Raises UserError for another name, or an unknown model."""
    from cascade_rl.launchers.plan.cascade_plan import plan_cascade
    from cascade_rl.launchers.plan.hardware import read_hardware

    return plan_cascade(cascade, *read_hardware(hardware))


def text(cascade: "Cascade", hardware: str) -> str:
    """`plan` as tables of plain text."""
    from cascade_rl.launchers.plan.table import plain_text

    return plain_text(plan(cascade, hardware))
