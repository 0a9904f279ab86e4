"""`cascade status RUN`: shows the state of each stage of a run, and its scores in every domain."""

import fcntl
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cascade_rl.launchers.report.alerts import alerts
from cascade_rl.launchers.report.time_left import TimeLeft
from cascade_rl.rl_stages.run.pace import duration
from cascade_rl.rl_stages.run.run_folder import RunFolder, StageFolder
from cascade_rl.rl_stages.run.stop_request import STOPPED

RUNNING, FAILED, INTERRUPTED = "running", "failed", "interrupted"


def run(root: Path, live: Collection[str] = ()) -> int:
    """`live` are the stages whose Slurm jobs are alive."""
    folder = RunFolder.open(root)
    console = Console(highlight=False)
    console.print(status_table(folder, live))
    if folder.cascade.scored_domains:
        console.print(scores_table(folder))
    if left := str(TimeLeft.of(folder)):
        console.print(f"time left: {left}", soft_wrap=True)
    for stage in folder.stages:
        for alert in alerts(stage):
            told = f"{stage.label}: {alert.text}. See docs/symptoms/{alert.page}.md"
            console.print(told, soft_wrap=True, markup=False, style="yellow")
        failed = last_attempt(stage) if state(folder, stage, live) == FAILED else None
        if failed and failed.message:
            console.print(f"{stage.label} failed: {failed.message}", soft_wrap=True, markup=False)
    at_work = "a launcher is at work" if is_claimed(root) else "no launcher is at work"
    console.print(f"{root}: {at_work}", soft_wrap=True)
    return 0


def status_table(run: RunFolder, live: Collection[str] = ()) -> Table:
    """One row per stage."""
    table = Table(title=run.cascade.name, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    left = TimeLeft.of(run).stages
    for heading in ("stage", "from", "state", "steps", "seconds", "left"):
        table.add_column(heading, justify="right" if heading in ("steps", "seconds", "left") else "left")
    for stage in run.stages:
        parent = stage.parent.config.name if stage.parent else "base"
        steps = f"{stage.last_step()}/{stage.config.steps}"
        if stop := stage.early_stop:
            steps += f" ({stop['rule']})"
        still = duration(left[stage.config.name]) if stage.config.name in left else ""
        table.add_row(stage.label, parent, state(run, stage, live), steps, f"{stage.seconds():.0f}", still)
    return table


def scores_table(run: RunFolder) -> Table:
    """One row per domain, one column per stage: the held-out score after the stage, coloured by the gain."""
    table = Table(title="held-out scores after each stage", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("domain")
    for stage in run.stages:
        table.add_column(stage.label.partition("_")[0], justify="right", no_wrap=True)
    for domain in run.cascade.scored_domains:
        table.add_row(domain, *(_score(stage, domain) for stage in run.stages))
    return table


@dataclass(frozen=True)
class Attempt:
    """The last attempt at a stage. `code` is its exit code; None if it has not ended, or nobody saw its end."""

    code: int | None
    message: str


def last_attempt(stage: StageFolder) -> Attempt | None:
    """None if there was none."""
    events = [event for event in stage.events.rows() if event["event"] in ("attempt", "ended")]
    if not any(event["event"] == "attempt" for event in events):
        return None
    return Attempt(events[-1].get("exit_code"), events[-1].get("message", ""))


def state(run: RunFolder, stage: StageFolder, live: Collection[str] = ()) -> str:
    """The state in a few words: done, gate closed, running, failed, interrupted, ready, or what the stage waits for.

    An attempt whose end nobody saw runs as long as a launcher or a job is at work. `live`: see `run`."""
    if stage.done:
        return "done" if all(verdict.passed for verdict in stage.gate()) else "gate closed"
    if last := last_attempt(stage):
        code = last.code
        if stage.config.name in live or (code is None and is_claimed(run.root)):
            return RUNNING
        return INTERRUPTED if code in (None, STOPPED) else FAILED
    waiting = [other.config.name for other in run.dependencies(stage) if not other.done]
    return f"waits for {', '.join(waiting)}" if waiting else "ready"


def is_claimed(root: Path) -> bool:
    """Whether a launcher or one of its ranks holds the lock of the run folder."""
    lock = root / ".lock"
    if not lock.exists():
        return False
    with lock.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def _score(stage: StageFolder, domain: str) -> Text:
    scores = stage.scores()
    if domain not in scores.get("after", {}):
        return Text("")
    after, before = scores["after"][domain], scores["before"][domain]
    style = "green" if after > before else "red" if after < before else "dim"
    return Text(f"{after:.3f}".removeprefix("0"), style)
