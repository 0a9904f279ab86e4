"""Stands between the engines and a loop: draws the first samples of each step, in turn with the trainer or ahead of it.

    max_staleness 0   engines  [ draw n ]                     [ draw n + 1 ]
                      trainer            [ learn n ][ refit ]                [ learn n + 1 ][ refit ]
    max_staleness 1   engines  [ draw n + 1       ]           [ draw n + 2       ]
                      trainer  [ learn n ]         [ refit ]  [ learn n + 1 ]     [ refit ]

New weights wait for the samples in flight: all samples of a batch are of one version, and which one follows from the
step alone, never from time. Two runs draw the same samples, and a killed one goes on as if nothing had happened
(docs/async.md).

    max_staleness N   engines  [ draw n + 1 ... n + N, without a pause ........
                      trainer  [ learn n ][ refit ][ learn n + 1 ][ refit ] ...

With N of 2 or more weights come while samples run. When the trainer has the batch of step n, the engines are asked for
that of step n + N. They begin samples in the order of the steps, so the first token of a sample is at most N versions
older than the weights that learn from it. A refit waits for none: each goes on from its last token, with the new
weights. Which token that is depends on time. What an earlier attempt has finished is therefore taken from the ledger,
at the version at which it was finished, and each step whose samples are complete there is repeated to the bit.

With `rollout.batch_order=ending` a step of these learns from the groups that have ended first (ending_order.py).
"""

from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from itertools import islice
from types import TracebackType
from typing import Any, NamedTuple, Self

from cascade_rl.engine.backend.ranks import from_rank0
from cascade_rl.engine.core.rollouts import Request, Rollout, Sampling
from cascade_rl.engine.rollout.client import EngineDied
from cascade_rl.engine.sync.flight import Flight
from cascade_rl.engine.sync.sampler import sample
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.ending_order import EndingOrder, Group
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

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        """What a stage that ends early has begun is drawn to its end: the engines are needed for its score."""
        for begun in self._begun.values():
            if kind is None:
                self._collected(begun)
            elif begun.batch:
                begun.batch.stop()

    def take(self, step: int) -> Drawn:
        """The first samples of a step, the same on every rank. Waits for them."""
        if not self._runs_ahead:
            return self.more(self._ask(step))
        with self.session.phase("generation"):
            if step not in self._begun:  # the first step of an attempt
                self._begin(step, self._ledger_of(step))
            return self._collected(self._begun.pop(step))

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

    def _begin(self, step: int, ledger: int | None = None) -> None:
        self._begun[step] = self._start(self._ask(step), ledger)

    def _start(self, ask: Ask, ledger: int | None = None) -> Begun:
        drawing, batches = ExitStack(), {ask.label: ask.tasks}
        batch = drawing.enter_context(self.session.drawing(batches, ask.group, ask.sampling, ledger=ledger))
        if batch:
            self._send(batch)
        return Begun(ask, batch, drawing)

    def _send(self, batch: RecordedBatch) -> None:
        batch.begin(self.session.ahead)

    def _collected(self, begun: Begun) -> Drawn:
        ask, batch, drawing = begun
        with drawing:
            rollouts = iter(sample(batch, self.session.refit))
        return Drawn(ask.tasks, [list(islice(rollouts, ask.group)) for _ in ask.tasks])

    def _ledger_of(self, step: int) -> int:
        """Where an earlier attempt has kept the samples of `step`. Those that are missing come from today's weights."""
        before = self.session.folder.ledger(step - 1)
        return step - 1 if from_rank0(before.exists) else step

    def _settle(self) -> None:
        for batch in [begun.batch for begun in self._begun.values() if begun.batch]:
            if not batch.collect() and self.session.layout.rollout.deterministic:
                raise WeightsGone(_told(batch.deaths[-1]))


class InFlightStream(RolloutStream):
    """A `RolloutStream` for a `max_staleness` of 2 or more."""

    def __init__(self, session: Session[Any], ask: Callable[[int], Ask]) -> None:
        super().__init__(session, ask)
        self._ahead, self._next = session.layout.rollout.steps_ahead, first_ask(session)
        self._flight: Flight | None = None
        if zero := session.zero:
            self._flight = Flight(zero.engine, zero.episodes.follow, session.ahead)
            zero.ledger.recall(session.folder.ledgers(session.first_step - session.layout.rollout.max_staleness))

    def __exit__(self, kind: type[BaseException] | None, *how: Any) -> None:
        for batch in self._batches if kind is None else ():
            self._fly(batch, batch.release(self.session.stage.steps))  # no later weights will come
        super().__exit__(kind, *how)

    def take(self, step: int) -> Drawn:
        """See `RolloutStream`. A later attempt begins with what was in flight at its checkpoint."""
        with self.session.phase("generation"):
            self._begin_attempt(step)
            return self._collected(self._begun.pop(step))

    def more(self, ask: Ask) -> Drawn:
        """See `RolloutStream`; beside what is in flight."""
        with self.session.phase("generation"):
            return self._collected(self._start(ask))

    def begin(self, step: int) -> None:
        """The engines begin with the first samples of the steps that may be in flight beside step `step` - 1."""
        with self.session.phase("generation"):
            self._begin_until(step + self._ahead)

    def refit(self, version: int) -> float:
        """Gives the engines new weights while they sample. Returns the probe's largest gap."""
        with self.session.phase("refit"):
            self.session.open_ledger(version)  # it has the weights' digest before any sample has a token of them
            if self._batches and self._flight:
                self._flight.revive(self._batches[0])
            gap = self.session.refit(version)
            if self.session.log:
                self.session.log.stalled(self.session.refit.stalls)
            for batch in self._batches:
                self._fly(batch, batch.release(version))
        return gap

    def _send(self, batch: RecordedBatch) -> None:
        self._fly(batch, batch.undrawn())

    def _fly(self, batch: RecordedBatch, requests: list[Request]) -> None:
        assert self._flight
        self._flight.begin(batch, requests)

    @property
    def _batches(self) -> list[RecordedBatch]:
        return [begun.batch for begun in self._begun.values() if begun.batch]

    def _begin_attempt(self, step: int) -> None:
        if step == self.session.first_step:
            self._begin_until(step + self._ahead if step else 1)

    def _begin_until(self, step: int) -> None:
        while self._next < min(step, self.session.stage.steps):
            self._begin(self._next)
            self._next += 1


class EndingOrderStream(InFlightStream):
    """An `InFlightStream` whose steps learn from the groups that `EndingOrder` gives them."""

    def __init__(self, session: Session[Any], ask: Callable[[int], Ask]) -> None:
        super().__init__(session, ask)
        self._ended = deque[str]()
        self._order: EndingOrder | None = None
        if self._flight and session.zero:
            self._flight.ended = self._ended.append
            self._order = EndingOrder(session.zero.ledger.groups(), session.first_step)
        self._learned = set(from_rank0(lambda: self._order.learned if self._order else []))
        self._left: dict[int, set[int]] = {}  # of each step's groups, the places of those that no step has learned from

    def take(self, step: int) -> Drawn:
        """See `RolloutStream`: groups that have ended, of this and other steps' prompts."""
        with self.session.phase("generation"):
            self._begin_attempt(step)
            while not from_rank0(lambda: self._wait_for(step)):
                self.session.refit.send()
            chosen = from_rank0(lambda: self._choose(step))
            groups = [self._group(*group) for group in chosen]
            self._close_empty()
            return Drawn([task for task, _ in groups], [rollouts for _, rollouts in groups])

    def refit(self, version: int) -> float:
        """See `InFlightStream`."""
        gap = super().refit(version)
        for batch in self._batches:
            self._ended.extend(list(batch.rollouts))  # those that were held until this version among them
        return gap

    def _begin(self, step: int, ledger: int | None = None) -> None:
        super()._begin(step, ledger)
        ask, batch, _ = self._begun[step]
        self._left[step] = {place for place in range(len(ask.tasks)) if (step, place) not in self._learned}
        if batch and self._order:
            names = [request.id for request in batch.requests]
            groups = [names[first : first + ask.group] for first in range(0, len(names), ask.group)]
            self._order.begin(step, groups, (ask.group, ask.sampling))
            self._ended.extend(list(batch.rollouts))

    def _close_empty(self) -> None:
        for step in [step for step in self._begun if not self._left[step]]:
            self._begun.pop(step).drawing.close()

    def _wait_for(self, step: int) -> bool:
        assert self._flight
        return self._flight.wait_for(lambda: self._is_ready(step), self._batches[0])

    def _is_ready(self, step: int) -> bool:
        assert self._order
        while self._ended:
            self._order.end(self._ended.popleft())
        return self._order.groups_of(step) is not None

    def _choose(self, step: int) -> list[Group]:
        assert self._order and self.session.zero
        chosen = self._order.take(step)
        self.session.zero.ledger.learned(step, chosen)
        return chosen

    def _group(self, step: int, place: int) -> tuple[Task, list[Rollout]]:
        ask, batch, _ = self._begun[step]
        self._left[step].remove(place)
        first = place * ask.group
        return ask.tasks[place], batch.in_order(first, first + ask.group) if batch else []


def first_ask(session: Session[Any]) -> int:
    """The step whose prompts an attempt asks for first: in the order of ending, that before its first one may have left
    some of its groups."""
    ending = session.layout.rollout.batch_order == "ending"
    return max(session.first_step - ending, 0)


def rollout_stream(session: Session[Any], ask: Callable[[int], Ask]) -> RolloutStream:
    """The stream of a stage, as its `max_staleness` and `batch_order` say."""
    rollout = session.layout.rollout
    if not rollout.in_flight:
        return RolloutStream(session, ask)
    return (InFlightStream if rollout.batch_order == "starting" else EndingOrderStream)(session, ask)


def _told(death: EngineDied) -> str:
    return (
        f"{death}\nIt was sampling ahead of the trainer: expected to draw its samples again from the same weights, "
        "which rollout.deterministic promises; found that the trainer has newer ones. Start the run again: it goes on "
        "from its checkpoint, with what is finished"
    )
