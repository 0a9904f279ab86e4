"""Prints a plan as tables."""

import io
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cascade_rl.launchers.plan.cascade_plan import Plan
from cascade_rl.launchers.plan.hardware import GIB
from cascade_rl.launchers.plan.stage_plan import Phase, StagePlan

PLAIN_WIDTH = 160
TERMS = 6  # shown per phase


def plain_text(plan: Plan) -> str:
    """The plan without colours, PLAIN_WIDTH characters wide."""
    page = io.StringIO()
    print_plan(plan, Console(file=page, width=PLAIN_WIDTH, no_color=True, force_terminal=False))
    return page.getvalue()


def print_plan(plan: Plan, console: Console) -> None:
    gpu = plan.gpu
    console.print(
        f"{plan.cascade} on {gpu.name}: {plan.model} ({plan.source}); {gpu.memory_gib} GiB per GPU",
        highlight=False,
    )
    for table in (_memory(plan), _cost(plan), _placements(plan)):
        console.print(table)
    for stage in plan.stages:
        for line in (*_fastest(plan, stage), *verdict(plan, stage)):
            console.print(line, highlight=False, soft_wrap=True, markup=False)
    console.print(_footer(plan), highlight=False, soft_wrap=True)


def _memory(plan: Plan) -> Table:
    table = Table("stage", "phase", "GiB", "of GPU", "largest terms, GiB", title="memory of the fullest GPU", box=None)
    for stage in plan.stages:
        for number, phase in enumerate(phase for phase in stage.phases if phase.memory):
            full = phase.bytes / plan.gpu.capacity
            style = "bold red" if full > 1 else ""
            table.add_row(
                stage.name if not number else "",
                phase.name,
                f"{phase.bytes / GIB:.2f}",
                Text(f"{full:.0%}", style),
                _terms(phase),
            )
    return table


def _terms(phase: Phase) -> str:
    ordered = sorted(phase.memory.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {size / GIB:.1f}" for name, size in ordered[:TERMS])


def _cost(plan: Plan) -> Table:
    headings = (
        "stage",
        "GPUs",
        "step s",
        "phases s",
        "tokens/s/GPU",
        "GPU hours",
        "cache tokens",
        "sequences",
        "disk GB",
        "host GB",
    )
    table = Table(*headings, title="time, cache per engine, and storage", box=None)
    for stage in plan.stages:
        table.add_row(*_cost_row(stage))
    return table


def _cost_row(stage: StagePlan) -> Iterator[str]:
    yield stage.name
    yield str(stage.gpus)
    if stage.problems:
        return
    yield f"{stage.step_seconds:.1f}"
    yield ", ".join(f"{phase.name} {phase.seconds:.1f}" for phase in stage.phases if phase.seconds >= 0.05)
    yield f"{stage.tokens_per_second_per_gpu:,.0f}"
    yield f"{stage.gpu_hours:,.1f}"
    yield f"{stage.cache.tokens:,}" if stage.cache else ""
    yield _sequences(stage)
    yield f"{sum((stage.disk or {}).values()) / 1e9:,.1f}"
    yield f"{stage.host_bytes_per_node / 1e9:,.1f}"


def _sequences(stage: StagePlan) -> str:
    if stage.cache is None:
        return ""
    cache = stage.cache
    return f"{cache.sequences_at_longest:.0f} longest, {cache.sequences_at_mean:.0f} mean, {cache.running} run"


def _placements(plan: Plan) -> Table:
    headings = "stage", "engines work", "trainer + engine GPUs", "staleness", "step s", "trainer busy", "engines busy"
    table = Table(*headings, "GPU hours", title="the GPUs of a stage in turn, or some for engines alone", box=None)
    for stage in plan.stages:
        for number, split in enumerate(plan.splits[stage.name]):
            table.add_row(
                stage.name if not number else "",
                split.way,
                f"{split.trainer}" if split.way == "in turn" else f"{split.trainer} + {split.engines}",
                str(split.staleness),
                f"{split.step:.1f}",
                f"{split.trainer_busy:.0%}",
                f"{split.engines_busy:.0%}",
                f"{split.gpus * split.step * stage.steps / 3600:,.1f}",
            )
    return table


def _fastest(plan: Plan, stage: StagePlan) -> Iterator[str]:
    """How to start the fastest way to share the GPUs, where the launcher has another."""
    best = min(plan.splits[stage.name], key=lambda split: split.step, default=None)
    if best and best.settings:
        yield f"{stage.name}: fastest {best.way}: {' '.join(best.settings)}"


def verdict(plan: Plan, stage: StagePlan) -> Iterator[str]:
    """What would fail, what breaks first, and what would fit. Nothing for a stage that fits."""
    for problem in stage.problems:
        yield f"{stage.name}: {problem}"
    if stage.fits(plan.gpu.capacity):
        return
    fullest = stage.fullest
    if fullest:
        term = max(fullest.memory, key=lambda name: fullest.memory[name])
        over = (fullest.bytes - plan.gpu.capacity) / GIB
        yield f"{stage.name}: {fullest.name} breaks first, {over:.2f} GiB above the GPU's; its largest term is {term}"
    for mend in stage.mends:
        yield f"{stage.name}: fits with {mend}"
    if not stage.mends:
        yield f"{stage.name}: no neighbouring layout fits; change more than two settings"


def _footer(plan: Plan) -> str:
    cores = sum(stage.sandbox_core_hours for stage in plan.stages)
    sandbox = f"; {cores:,.0f} core hours of sandboxes, on {plan.gpu.cores_per_node} cores per node" if cores else ""
    verdict = "everything fits" if plan.fits else "not everything fits"
    return (
        f"{verdict}; {plan.gpu_hours:,.0f} GPU hours{sandbox}; {plan.disk_bytes / 1e9:,.1f} GB of disk. "
        "Times are computed, not measured (docs/plan.md)"
    )
