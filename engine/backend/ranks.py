"""What ranks tell each other beside their work: rank 0 samples, verifies and writes, and every rank gets the result.

All of it goes through the control group, where ranks may wait for hours.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from cascade_rl.engine.backend.process_groups import control_group
from cascade_rl.engine.backend.raw_arrays import outline, receive, send


def is_rank0() -> bool:
    return dist.get_rank() == 0


def from_rank0[T](produce: Callable[[], T]) -> T:
    """What `produce()` returned on rank 0, for every rank. An exception ends rank 0; the launcher ends the others."""
    value = produce() if is_rank0() else None
    told, arrays = outline(value)
    box = [told if is_rank0() else None]
    dist.broadcast_object_list(box, src=0, group=control_group())
    return _exchanged(value, arrays, box[0], 0)


def from_all(mine: Any) -> list[Any]:
    """`mine` of every rank, in the order of the ranks. Collective."""
    told, arrays = outline(mine)
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, told, group=control_group())
    return [_exchanged(mine, arrays, theirs, rank) for rank, theirs in enumerate(found)]


def _exchanged(mine: Any, arrays: Sequence[np.ndarray], told: Any, source: int) -> Any:
    """The value of rank `source`, whose outline is known to all."""
    if dist.get_rank() != source:
        return receive(told, source, control_group())
    send(arrays, control_group())
    return mine


def any_rank(mine: bool) -> bool:
    """Whether `mine` is true on any rank. Collective."""
    return bool(_reduced(float(mine), dist.ReduceOp.MAX))


def least(mine: float) -> float:
    """The smallest `mine` of all ranks. Collective."""
    return _reduced(mine, dist.ReduceOp.MIN)


def barrier() -> None:
    """Waits until every rank is here."""
    dist.barrier(group=control_group())


def _reduced(mine: float, how: dist.ReduceOp.RedOpType) -> float:
    number = torch.tensor(mine, dtype=torch.float64)
    dist.all_reduce(number, how, group=control_group())
    return float(number)
