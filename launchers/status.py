"""`cascade status RUN`: where each stage of a run stands, and what it did to every domain."""

import fcntl
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cascade_rl.rl_stages.run_folder import RunFolder, StageFolder


def run(root: Path) -> int:
    folder = RunFolder.open(root)
    console = Console(highlight=False)
    console.print(status_table(folder))
    at_work = "a launcher is at work" if is_claimed(root) else "no launcher is at work"
    console.print(f"{root}: {at_work}", soft_wrap=True)
    return 0


def status_table(run: RunFolder) -> Table:
    """One row a stage; scores are held out, after the stage where it has them, and their gain over "before"."""
    table = Table(title=run.cascade.name)
    for heading in ("stage", "from", "state", "steps", "seconds", *run.cascade.evaluation.domains):
        table.add_column(heading, justify="left" if heading in ("stage", "from", "state") else "right")
    for stage in run.stages:
        parent = stage.parent.config.name if stage.parent else "base"
        steps = f"{stage.last_step()}/{stage.config.steps}"
        scores = [_score(stage, domain) for domain in run.cascade.evaluation.domains]
        table.add_row(stage.label, parent, state(run, stage), steps, f"{stage.seconds():.0f}", *scores)
    return table


def state(run: RunFolder, stage: StageFolder) -> str:
    """In one or two words: done, gate closed, started, ready, or what it waits for."""
    if stage.done:
        return "done" if all(verdict.passed for verdict in stage.gate()) else "gate closed"
    if stage.events.rows():
        return "started"
    waiting = [other.config.name for other in run.dependencies(stage) if not other.done]
    return f"waits for {', '.join(waiting)}" if waiting else "ready"


def is_claimed(root: Path) -> bool:
    """Whether a launcher, or a rank of one, holds the run folder."""
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
    if "after" not in scores:
        return Text("")
    after, gain = scores["after"][domain], scores["after"][domain] - scores["before"][domain]
    style = "green" if gain > 0 else "red" if gain < 0 else "dim"
    return Text.assemble(f"{after:.3f} ", (f"{gain:+.3f}", style))
