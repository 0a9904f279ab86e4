"""The samples of a batch of requests, even if engine processes die meanwhile."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from threading import Lock

from cascade_rl.engine.backend.ranks import from_rank0
from cascade_rl.engine.core.rollouts import PART, Request, Rollout
from cascade_rl.engine.core.routes import narrowed
from cascade_rl.engine.rollout.engine import Engine, Follow, single_turn
from cascade_rl.engine.rollout.server_process import EngineDied
from cascade_rl.engine.sync.weight_sync import Refit

RESTARTS = 2  # in one batch; if an engine dies more often, the batch is the cause


class Batch:
    """One batch on one engine, which may die RESTARTS times; rank 0's part of `sample`.

    finished  samples, by id, that an earlier attempt has drawn
    awaited   `collect` of a batch whose samples arrive together with those of others (flight.py); None: the engine is
              its own
    """

    def __init__(
        self,
        engine: Engine,
        requests: Sequence[Request],
        follow: Follow = single_turn,
        finished: Mapping[str, Rollout] | None = None,
    ) -> None:
        self.engine, self.requests, self.follow = engine, requests, follow
        self.rollouts = dict(finished or {})
        self.deaths: list[EngineDied] = []
        self.awaited: Callable[[], bool] | None = None
        self._unsent = requests
        self._ahead: Future[bool] | None = None
        self._receiving, self._stopped = Lock(), False

    def begin(self, thread: Executor) -> None:
        """Samples in `thread` from now on, until nothing is pending or an engine dies. `collect` waits for it.

        Nothing else may use the engine meanwhile."""
        self._ahead = thread.submit(self._sample)

    def collect(self) -> bool:
        """Samples until nothing is pending. False where weights are needed first: for the successor of an engine whose
        samples wait for them, or for one that has started since the last draw.

        Raises EngineDied after RESTARTS restarts.
        """
        if self.awaited:
            return self.awaited()
        ahead, self._ahead = self._ahead, None
        if ahead:
            return ahead.result()
        return not self.engine.awaits_weights() and self._sample()

    def receive(self, rollout: Rollout) -> None:
        """Called with each sample as it finishes."""
        self.rollouts[rollout.id] = rollout

    def receive_part(self, part: Rollout) -> None:
        """Called with each part of an unfinished turn that an engine tells."""

    def stop(self) -> None:
        """Nothing is received after this. What has begun in a thread ends with the engine."""
        with self._receiving:
            self._stopped = True

    def _sample(self) -> bool:
        while True:
            try:
                self._draw()
            except EngineDied as death:
                if not self.restart(death):
                    return False
            else:
                return True

    def _draw(self) -> None:
        """The requests are sent once, also if the engine dies of it."""
        unsent, self._unsent = self._unsent, ()
        for rollout in self.engine.generate(unsent, self.follow, self.rollouts):
            if not self.arrive(rollout):
                return

    def arrive(self, rollout: Rollout) -> bool:
        """Receives a sample, or a part of one. False once it was stopped."""
        with self._receiving:
            if not self._stopped:
                (self.receive_part if rollout.finish == PART else self.receive)(rollout)
        return not self._stopped

    def restart(self, death: EngineDied) -> bool:
        """Starts a new process for each dead one. Whether others go on with its samples."""
        if len(self.deaths) == RESTARTS:
            raise death
        self.record_death(death)
        try:
            return bool(self.engine.restart())
        except EngineDied as again:
            return self.restart(again)

    def record_death(self, death: EngineDied) -> None:
        """Called before each restart."""
        self.deaths.append(death)

    def pending(self) -> list[str]:
        """Ids of the requests without a sample."""
        return [request.id for request in self.requests if request.id not in self.rollouts]

    def in_order(self, first: int = 0, end: int | None = None) -> list[Rollout]:
        """The samples of these requests, in their order. Their routes are as narrow as in a batch."""
        return [_narrow(self.rollouts[request.id]) for request in self.requests[first:end]]


def sample(batch: Batch | None, refit: Refit) -> list[Rollout]:
    """One rollout per request, in the order of the requests, on rank 0; on the others, whose `batch` is None, an empty
    list. Collective.

    An engine that died is started again with the same weights, for which every trainer rank is needed: the trainer has
    them until its next update, and sends while it waits for samples here. What the engine had not finished is sampled
    again with the same seeds; of a sample in several turns, only the turn. Raises EngineDied after RESTARTS restarts.
    """
    while not from_rank0(lambda: batch.collect() if batch else True):
        refit.send()
    return batch.in_order() if batch else []


def _narrow(rollout: Rollout) -> Rollout:
    return rollout if rollout.routes is None else replace(rollout, routes=narrowed(rollout.routes))
