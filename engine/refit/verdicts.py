"""How all trainer ranks of a job learn that all its workers hold the new weights: one wait each, at the store."""

from collections.abc import Sequence
from datetime import timedelta

from torch.distributed import DistStoreError, Store

from cascade_rl.engine.refit.plan import RefitError

ACCEPTED = "accepted"


class Verdicts:
    """One member's view of the verdicts of `workers`, refit after refit.

    Each worker that has its weights adds one to a counter. The last of them, or the first that objects, sets the key
    for which the trainer ranks wait. Members count refits, not weight versions: a rank that sends another version
    waits for the same key.
    """

    def __init__(self, store: Store, workers: Sequence[int]) -> None:
        self._store, self._workers = store, workers
        self._refits = 0

    def accept(self, worker: int) -> None:
        """Called by a worker that has all its weights."""
        self._store.set(self._of(worker), ACCEPTED)
        if self._store.add(f"verdicts/{self._refits}", 1) == len(self._workers):
            self._store.set(self._of_all(), ACCEPTED)
        self._refits += 1

    def object(self, worker: int, reason: Exception) -> None:
        """Called by a worker that refuses what it got. The first one counts: others may only have waited in vain."""
        self._store.compare_set(self._of_all(), "", f"worker {worker}: {reason}")

    def wait(self, seconds: float) -> None:
        """Called by a trainer rank. Raises RefitError with the objection, or naming the workers that are silent."""
        try:
            self._store.wait([self._of_all()], timedelta(seconds=seconds))
        except DistStoreError as late:
            silent = [worker for worker in self._workers if not self._store.check([self._of(worker)])]
            raise RefitError(
                f"expected every worker's verdict within {seconds:.0f} s, found none from {silent}"
            ) from late
        verdict = self._store.get(self._of_all()).decode()
        if verdict != ACCEPTED:
            raise RefitError(verdict)
        self._refits += 1

    def _of(self, worker: int) -> str:
        return f"verdict/{self._refits}/{worker}"

    def _of_all(self) -> str:
        return f"verdict/{self._refits}"
