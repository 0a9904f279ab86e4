"""The console output of a stage: one line per step, and on a terminal the current phase below it."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.status import Status
from rich.text import Text

from cascade_rl.rl_stages.run.pace import duration, pace

# Metrics that the line shows when a step has them, in this order, with their format. `tme` is the
# train/rollout gap: the mean of exp|log p_train - log p_rollout|, 1 when both agree; `stale_gap` that of
# samples of older weights, a mean in nats. `signal_fraction` is 0 if no reward teaches anything.
SHOWN = {
    "loss": ".4f",
    "validation_loss": ".4f",
    "reward": ".3f",
    "length": ".1f",
    "truncated_fraction": ".2f",
    "signal_fraction": ".2f",
    "entropy": ".3f",
    "tme": ".6f",
    "stale_gap": ".3f",
    "grad_norm": ".3f",
}


def metrics_text(metrics: Mapping[str, float]) -> str:
    shown = {name: form for name, form in SHOWN.items() if name in metrics}
    return "  ".join(f"{name.removesuffix('_fraction')} {metrics[name]:{form}}" for name, form in shown.items())


@dataclass
class Progress:
    """The output of one stage. A context manager, used by the rank that owns the terminal."""

    label: str
    steps: int
    console: Console = field(default_factory=lambda: Console(highlight=False))
    _status: Status | None = None
    _ends: list[float] = field(default_factory=list)  # of the steps, in seconds

    def __enter__(self) -> "Progress":
        if self.console.is_terminal:
            self._status = self.console.status(f"{self.label} starts")
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status:
            self._status.stop()

    @contextmanager
    def phase(self, name: str, total: int = 0) -> "Iterator[Phase]":
        """Show a phase while it lasts, such as `generation 312/2048`. Shows nothing without a terminal."""
        phase = Phase(self, name, total)
        phase.advance(0)
        yield phase

    def say(self, text: str) -> None:
        """Prints one line about the stage."""
        self.console.print(Text.assemble((self.label, "bold"), f"  {text}"), soft_wrap=True)

    def step(
        self,
        step: int,
        metrics: Mapping[str, float],
        seconds: Mapping[str, float],
        tokens: int,
        reward_overlapped_s: float = 0.0,
    ) -> None:
        """Prints the line of a finished step: metrics, tokens per second of the whole step, seconds per phase,
        seconds of scoring that generation hid, and how long the remaining steps take at the pace of the last ones."""
        speed = f"{tokens / sum(seconds.values()):,.0f} tok/s"
        phases = " ".join(f"{name} {spent:.1f}s" for name, spent in seconds.items())
        if reward_overlapped_s >= 0.05:  # less is shown as 0.0
            phases += f" (reward overlapped {reward_overlapped_s:.1f}s)"
        self._ends.append(time.monotonic())
        if one := pace(self._ends):
            phases += f"  {duration(one * (self.steps - step))} left"
        width = len(str(self.steps))
        line = Text.assemble(
            (self.label, "bold"),
            (f"  {step:{width}d}/{self.steps}  ", "cyan"),
            "  ".join([metrics_text(metrics), speed]),
            (f"  {phases}", "dim"),
        )
        self.console.print(line, soft_wrap=True)


@dataclass
class Phase:
    """A phase in progress, with an optional count of finished items."""

    progress: Progress
    name: str
    total: int
    finished: int = 0

    def advance(self, count: int = 1) -> None:
        self.finished += count
        if self.progress._status:
            counted = f" {self.finished}/{self.total}" if self.total else ""
            self.progress._status.update(f"{self.progress.label}  {self.name}{counted}")
