"""Builds any rank of a layout of any size on one CPU, without its memory: Megatron's own modules on the meta device.

A fake process group stands in for the other ranks, so that Megatron forms its groups and builds its modules as it would
on the cluster. Nothing is allocated and nothing is sent.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.hybrid.hybrid_model import HybridModel
from torch.testing._internal.distributed.fake_pg import FakeStore

from cascade_rl.engine.backend.machine import backend
from cascade_rl.engine.backend.process_groups import cut_ranks
from cascade_rl.engine.core.settings import ParallelConfig
from cascade_rl.engine.models.build import build_model, chunks_of
from cascade_rl.engine.models.hf_config import HfConfig


@contextmanager
def imagined_rank(rank: int, world: int, parallel: ParallelConfig) -> Iterator[None]:
    """In the block this process is rank `rank` of `world`. It must not have a process group yet."""
    backend()
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    try:
        cut_ranks(parallel)
        yield
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


def meta_chunks(hf: HfConfig, parallel: ParallelConfig) -> list[HybridModel]:
    """The model chunks of the imagined rank: names, shapes and dtypes, no storage."""
    with torch.device("meta"):
        model = build_model(hf, parallel, seed=0)
    return chunks_of(model.to("meta"))  # Mamba's small tensors choose their own device
