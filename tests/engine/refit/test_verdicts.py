"""Trainer ranks wait once for all workers, and hear the first objection."""

import pytest
from torch.distributed import HashStore

from cascade_rl.engine.refit.plan import RefitError
from cascade_rl.engine.refit.verdicts import Verdicts

WORKERS = range(3)


@pytest.fixture
def store() -> HashStore:
    return HashStore()


def test_the_last_worker_ends_the_wait_of_each_refit(store: HashStore) -> None:
    rank, *workers = (Verdicts(store, WORKERS) for _ in range(4))
    for _ in range(2):
        for number, worker in enumerate(workers[:2]):
            worker.accept(number)
        with pytest.raises(RefitError, match=r"within 0 s, found none from \[2\]"):
            rank.wait(0.05)
        workers[2].accept(2)
        rank.wait(60)


def test_the_first_objection_counts_and_reaches_ranks_that_accepted_nothing(store: HashStore) -> None:
    ranks = [Verdicts(store, WORKERS) for _ in range(2)]
    Verdicts(store, WORKERS).accept(0)
    Verdicts(store, WORKERS).object(2, ValueError("a wrong byte"))
    Verdicts(store, WORKERS).object(1, ValueError("nobody sends any more"))
    for rank in ranks:
        with pytest.raises(RefitError, match="worker 2: a wrong byte"):
            rank.wait(60)
