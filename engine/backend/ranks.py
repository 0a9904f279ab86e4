"""Work that rank 0 does for all: it samples, verifies and writes, and every rank gets the result."""

from collections.abc import Callable

import torch
import torch.distributed as dist

from cascade_rl.engine.backend.machine import backend


def is_rank0() -> bool:
    return dist.get_rank() == 0


def from_rank0[T](produce: Callable[[], T]) -> T:
    """What `produce()` returned on rank 0, for every rank. An exception ends rank 0; the launcher ends the others."""
    box = [produce() if is_rank0() else None]
    dist.broadcast_object_list(box, src=0)
    return box[0]  # type: ignore[return-value]


def any_rank(mine: bool) -> bool:
    """Whether `mine` is true on any rank. Collective."""
    flag = torch.tensor(float(mine), device=backend().device)
    dist.all_reduce(flag, dist.ReduceOp.MAX)
    return bool(flag)
