"""Several batches on one engine at the same time, which goes on with them when new weights come. Rank 0's."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from threading import Condition

from cascade_rl.engine.core.rollouts import PART, Request
from cascade_rl.engine.rollout.engine import Engine, Follow
from cascade_rl.engine.rollout.server_process import EngineDied
from cascade_rl.engine.sync.sampler import Batch

LOOK_SECONDS = 1.0  # between two looks at whether a new engine has started


class Flight:
    """The samples of all its batches arrive in `thread`, which takes them from the engine as long as any is pending.

    ended  called there with the id of each
    """

    def __init__(self, engine: Engine, follow: Follow, thread: Executor) -> None:
        self.engine, self.follow, self._thread = engine, follow, thread
        self.ended: Callable[[str], object] | None = None
        self._batch_of: dict[str, Batch] = {}
        self._rounds: list[Future[None]] = []
        self._change = Condition()

    def begin(self, batch: Batch, requests: Sequence[Request]) -> None:
        """The engine draws these samples of a batch from now on. `batch.collect` waits for all that it lacks."""
        batch.awaited = partial(self.collect, batch)
        if requests:
            self._batch_of |= dict.fromkeys((request.id for request in requests), batch)
            self.engine.submit(requests)
            self._receive()

    def collect(self, batch: Batch) -> bool:
        """Waits for all samples of a batch. False where the successor of an engine that died waits for the weights."""
        return self.wait_for(lambda: not batch.pending(), batch)

    def wait_for(self, holds: Callable[[], bool], batch: Batch) -> bool:
        """As `collect`, until `holds()`, which is asked again whenever a sample has ended."""
        while not holds():
            with self._change:
                self._change.wait_for(lambda: holds() or self._errors(), LOOK_SECONDS)
            if not holds() and (not self.revive(batch) or self.engine.awaits_weights()):
                return False
        return True

    def revive(self, batch: Batch) -> bool:
        """Starts a new process for each engine that has died, if one has; `batch` counts the death. False where its
        samples wait for weights for the new one. Raises what else ended the sampling."""
        errors = self._errors()
        if not errors:
            return True
        if not isinstance(errors[0], EngineDied):
            raise errors[0]
        for ended in self._rounds:
            ended.exception()  # all of them end, since what is dead stays so until the restart
        self._rounds.clear()
        others_go_on = batch.restart(errors[0])
        self._receive()
        return others_go_on

    def _receive(self) -> None:
        self._rounds = [ended for ended in self._rounds if not ended.done() or ended.exception()]
        self._rounds.append(self._thread.submit(self._round))
        self._rounds[-1].add_done_callback(lambda _: self._tell())

    def _round(self) -> None:
        """Until nothing is pending. A request that comes at the very end is for the next round."""
        for rollout in self.engine.generate((), self.follow):
            if not self._batch_of[rollout.id].arrive(rollout):
                return
            if rollout.finish != PART:
                del self._batch_of[rollout.id]
                if self.ended:
                    self.ended(rollout.id)
                self._tell()

    def _tell(self) -> None:
        with self._change:
            self._change.notify_all()

    def _errors(self) -> list[BaseException]:
        return [error for ended in self._rounds if ended.done() and (error := ended.exception())]
