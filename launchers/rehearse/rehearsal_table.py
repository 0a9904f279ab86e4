"""The table at the end of a rehearsal: what ran of each stage, and what it stands for."""

from collections.abc import Mapping, Sequence

from rich.table import Table

from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.stage import OnPolicyStage, Stage
from cascade_rl.rl_stages.run.run_folder import RunFolder, StageFolder

HEADINGS = (
    "stage", "steps", "samples", "finished", "reward", "overlong", "attempts", "seconds", "at true size", "fails first",
)  # fmt: skip


def rehearsal_table(cascade: Cascade, run: RunFolder, failures: Mapping[str, Sequence[str]]) -> Table:
    """`cascade` has the true sizes, `run` is the rehearsal, and `failures` are those at true size, by stage."""
    table = Table(*HEADINGS, title=f"{cascade.name}, rehearsed")
    for folder in run.stages:
        name = folder.config.name
        first = next(iter(failures[name]), "nothing found").removeprefix(f"{name}: ")
        table.add_row(*_row(cascade, cascade.stage(name), folder), first)
    return table


def _row(cascade: Cascade, true: Stage, folder: StageFolder) -> tuple[str, ...]:
    rows = folder.metrics.rows()
    events = folder.events.rows()
    ended = "" if folder.done else " (not done)"
    return (
        f"{true.name}{ended}",
        f"{folder.last_step()} of {folder.config.steps}",
        _samples(folder, len(rows)),
        _mean(rows, "completed_fraction"),
        _mean(rows, "reward"),
        f"{rows[-1].get('overlong_prompts', 0):.0f}" if rows else "",
        str(sum(event["event"] == "attempt" for event in events)),
        f"{folder.seconds():.0f}",
        _true_size(cascade, true),
    )


def _samples(folder: StageFolder, steps: int) -> str:
    stage = folder.config
    return str(steps * stage.prompts_per_step * stage.rollouts_per_prompt) if isinstance(stage, OnPolicyStage) else ""


def _mean(rows: list[dict[str, float]], name: str) -> str:
    values = [row[name] for row in rows if name in row]
    return f"{sum(values) / len(values):.2f}" if values else ""


def _true_size(cascade: Cascade, true: Stage) -> str:
    layout = cascade.layout(true)
    where = f"{layout.nproc} GPUs"
    if not isinstance(true, OnPolicyStage):
        return f"{true.steps:,} steps, micro-batches of {true.token_budget:,} tokens, {where}"
    samples = f"{true.prompts_per_step} x {true.rollouts_per_prompt}"
    return f"{true.steps:,} steps of {samples}, {true.max_new_tokens:,} of {cascade.room(true).total:,} tokens, {where}"
