"""Stands between the engines and a loop: draws the first samples of each step, in turn with the trainer or ahead of it.

    max_staleness 0   engines  [ draw n ]                     [ draw n + 1 ]
                      trainer            [ learn n ][ refit ]                [ learn n + 1 ][ refit ]
    max_staleness 1   engines  [ draw n + 1       ]           [ draw n + 2       ]
                      trainer  [ learn n ]         [ refit ]  [ learn n + 1 ]     [ refit ]

New weights wait for the samples in flight: all samples of a batch are of one version, and which one follows from the
step alone, never from time. Two runs draw the same samples, and a killed one goes on as if nothing had happened
(docs/async.md).
"""

from collections.abc import Callable
from contextlib import ExitStack
from itertools import islice
from types import TracebackType
from typing import Any, NamedTuple, Self

from cascade_rl.engine.backend.ranks import from_rank0
from cascade_rl.engine.core.rollouts import Rollout, Sampling
from cascade_rl.engine.rollout.client import EngineDied
from cascade_rl.engine.sync.sampler import sample
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.rank_zero import RecordedBatch
from cascade_rl.rl_stages.session import Session


class Ask(NamedTuple):
    """What a step asks of the engines first; the arguments of `Session.draw`."""

    label: str
    tasks: list[Task]
    group: int
    sampling: Sampling


class Drawn(NamedTuple):
    """`group` samples for each task."""

    tasks: list[Task]
    groups: list[list[Rollout]]


class Begun(NamedTuple):
    """A batch in flight. `batch` is rank 0's; `drawing` ends with it."""

    ask: Ask
    batch: RecordedBatch | None
    drawing: ExitStack


class WeightsGone(RuntimeError):
    """Samples that an engine lost can no longer be drawn from the weights that they began with."""


class RolloutStream:
    """A context manager on each rank; all methods are collective.

    ask  what a step asks first. It is called once for each step, in their order
    """

    def __init__(self, session: Session[Any], ask: Callable[[int], Ask]) -> None:
        self.session, self._ask = session, ask
        self._runs_ahead = session.layout.rollout.max_staleness > 0
        self._begun: dict[int, Begun] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for begun in self._begun.values():
            if begun.batch:
                begun.batch.stop()

    def take(self, step: int) -> Drawn:
        """The first samples of a step, the same on every rank. Waits for them."""
        if not self._runs_ahead:
            return self.more(self._ask(step))
        with self.session.phase("generation"):
            if step not in self._begun:  # the first step of an attempt
                self._begin(step, self._ledger_of(step))
            ask, batch, drawing = self._begun.pop(step)
            with drawing:
                rollouts = iter(sample(batch, self.session.refit))
        return Drawn(ask.tasks, [list(islice(rollouts, ask.group)) for _ in ask.tasks])

    def more(self, ask: Ask) -> Drawn:
        """Further samples, from the newest weights, while nothing is in flight."""
        with self.session.phase("generation"):
            return Drawn(ask.tasks, self.session.draw(*ask))

    def begin(self, step: int) -> None:
        """The engines begin with the first samples of a step, if they may and there is one."""
        if self._runs_ahead and step < self.session.stage.steps:
            with self.session.phase("generation"):
                self._begin(step, step - 1)

    def refit(self, version: int) -> float:
        """Waits for the samples in flight, then gives the engines new weights. Returns the probe's largest gap.

        What an engine that died has not finished is drawn from the new weights. Raises WeightsGone if `deterministic`
        promises the samples that it would have drawn.
        """
        if self._begun:
            with self.session.phase("generation"):
                self._settle()
        with self.session.phase("refit"):
            return self.session.refit(version)

    def _begin(self, step: int, ledger: int) -> None:
        ask, drawing = self._ask(step), ExitStack()
        batches = {ask.label: ask.tasks}
        batch = drawing.enter_context(self.session.drawing(batches, ask.group, ask.sampling, ledger=ledger))
        if batch:
            batch.begin(self.session.ahead)
        self._begun[step] = Begun(ask, batch, drawing)

    def _ledger_of(self, step: int) -> int:
        """Where an earlier attempt has kept the samples of `step`. Those that are missing come from today's weights."""
        before = self.session.folder.ledger(step - 1)
        return step - 1 if from_rank0(before.exists) else step

    def _settle(self) -> None:
        for batch in [begun.batch for begun in self._begun.values() if begun.batch]:
            if not batch.collect() and self.session.layout.rollout.deterministic:
                raise WeightsGone(_told(batch.deaths[-1]))


def _told(death: EngineDied) -> str:
    return (
        f"{death}\nIt was sampling ahead of the trainer: expected to draw its samples again from the same weights, "
        "which rollout.deterministic promises; found that the trainer has newer ones. Start the run again: it goes on "
        "from its checkpoint, with what is finished"
    )
