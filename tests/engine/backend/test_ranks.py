"""Ranks wait for rank 0 however long it works, though collectives of data have a short limit."""

import time
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist

from cascade_rl.engine.backend.process_groups import initialize_distributed
from cascade_rl.engine.backend.ranks import any_rank, barrier, from_all, from_rank0, least
from cascade_rl.engine.core.settings import ParallelConfig
from tests.gloo import run_ranks

LIMIT_S, WORK_S = 5.0, 7.0  # the limit is also that of a meeting of ranks, on a busy machine


def join_with_limit() -> None:
    dist.init_process_group = partial(dist.init_process_group, timeout=timedelta(seconds=LIMIT_S))
    initialize_distributed(ParallelConfig(), seed=1)


def works(result: str) -> str:
    time.sleep(WORK_S)
    return result


def told() -> tuple[str, list[int], bool, float]:
    join_with_limit()
    found = from_rank0(lambda: works("drawn"))
    rank = dist.get_rank()
    if rank == 1:
        time.sleep(WORK_S)
    barrier()
    return found, from_all(rank), any_rank(rank == 1), least(2.0 - rank)


def test_what_rank_0_works_at_has_no_limit() -> None:
    assert run_ranks(2, told) == [("drawn", [0, 1], True, 1.0)] * 2


def late() -> str:
    join_with_limit()
    if dist.get_rank() == 0:
        time.sleep(WORK_S)
        return ""
    try:
        dist.all_reduce(torch.zeros(1))
    except RuntimeError as error:
        return str(error)
    return "all arrived"


def test_the_same_wait_in_the_group_of_the_data_ends_the_job() -> None:
    assert "Timed out waiting" in run_ranks(2, late)[1]
