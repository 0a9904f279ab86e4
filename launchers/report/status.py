"""`cascade status RUN`: shows the state of each stage of a run, and its scores in every domain."""

import fcntl
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cascade_rl.rl_stages.run.run_folder import RunFolder, StageFolder


def run(root: Path) -> int:
    folder = RunFolder.open(root)
    console = Console(highlight=False)
    console.print(status_table(folder))
    console.print(scores_table(folder))
    at_work = "a launcher is at work" if is_claimed(root) else "no launcher is at work"
    console.print(f"{root}: {at_work}", soft_wrap=True)
    return 0


def status_table(run: RunFolder) -> Table:
    """One row per stage."""
    table = Table(title=run.cascade.name, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("stage", "from", "state", "steps", "seconds"):
        table.add_column(heading, justify="right" if heading in ("steps", "seconds") else "left")
    for stage in run.stages:
        parent = stage.parent.config.name if stage.parent else "base"
        steps = f"{stage.last_step()}/{stage.config.steps}"
        if stop := stage.early_stop:
            steps += f" ({stop['rule']})"
        table.add_row(stage.label, parent, state(run, stage), steps, f"{stage.seconds():.0f}")
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


def state(run: RunFolder, stage: StageFolder) -> str:
    """The state in a few words: done, gate closed, started, ready, or what the stage waits for."""
    if stage.done:
        return "done" if all(verdict.passed for verdict in stage.gate()) else "gate closed"
    if stage.events.rows():
        return "started"
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
