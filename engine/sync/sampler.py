"""Samples for a batch of requests, whatever happens to the engine's process meanwhile."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

from cascade_rl.engine.backend.ranks import from_rank0
from cascade_rl.engine.core.rollouts import Request, Rollout
from cascade_rl.engine.rollout.client import EngineDied, RolloutEngine
from cascade_rl.engine.sync.weight_sync import Refit

RESTARTS = 2  # of one batch; an engine that dies more often dies of the batch

Follow = Callable[[Rollout], Future[Request | Rollout] | None]
"""What comes after a drawn turn: its sample's next request, or the whole sample; None where the turn is all of it."""


class Sampler:
    """One batch on one engine, which dies up to RESTARTS times; rank 0's part of `sample`."""

    def __init__(
        self,
        engine: RolloutEngine,
        follow: Follow,
        finished: Callable[[Rollout], None],
        died: Callable[[EngineDied], None],
        drawn: Mapping[str, Rollout] | None = None,
    ):
        """`drawn` are samples, by id, that are there already."""
        self.engine, self.follow, self.finished, self.died = engine, follow, finished, died
        self.rollouts = dict(drawn or {})
        self.deaths = 0

    def draw(self, requests: Sequence[Request]) -> bool:
        """Submits those of `requests` that were not drawn, none after a restart, and collects all that are pending.
        False where the engine dies."""
        return self._survives(lambda: self._collect(requests))

    def restart(self) -> bool:
        """Waits for the start. False where the engine dies of it."""
        self.engine.restart()
        return self._survives(self.engine.health)

    def _collect(self, requests: Sequence[Request]) -> None:
        if any(request.id not in self.rollouts for request in requests):
            self.engine.submit(requests, self.rollouts)
        for rollout in self.engine.results():
            if following := self.follow(rollout):
                self.engine.expect(rollout.id, following)
            else:
                self.rollouts[rollout.id] = rollout
                self.finished(rollout)

    def _survives(self, action: Callable[[], object]) -> bool:
        try:
            action()
        except EngineDied as death:
            if self.deaths == RESTARTS:
                raise
            self.deaths += 1
            self.died(death)
            return False
        return True


def sample(sampler: Sampler | None, refit: Refit, requests: Sequence[Request]) -> list[Rollout]:
    """One rollout per request, in the order of the requests, on every rank. Collective; `sampler` is rank 0's.

    An engine that dies is restarted with the same weights, for which every trainer rank is needed, and what it had
    not finished is drawn again with the same seeds; of a sample in turns, only the turn. Raises EngineDied after
    RESTARTS restarts.
    """
    drawn = from_rank0(lambda: bool(sampler and sampler.draw(requests)))
    while not drawn:
        if from_rank0(lambda: bool(sampler and sampler.restart())):
            refit.send()
            drawn = from_rank0(lambda: bool(sampler and sampler.draw(())))
    return from_rank0(lambda: [sampler.rollouts[request.id] for request in requests] if sampler else [])
