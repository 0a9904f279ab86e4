"""The ranks of a job, and how Megatron cuts them into groups."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from cascade_rl.engine.backend.machine import CONTROL, backend
from cascade_rl.engine.core.settings import ParallelConfig, check_world

CONTROL_LIMIT = timedelta(days=7)

_layout: ParallelConfig | None = None
_control: dist.ProcessGroup | None = None


def layout() -> ParallelConfig:
    """What `cut_ranks` has cut the ranks by; Megatron's groups do not know the layers of a stage."""
    assert _layout is not None, "cut_ranks comes first"
    return _layout


def control_group() -> dist.ProcessGroup:
    """All ranks, on the host. In it ranks wait for what has no limit of its own: a draw, a judge, an agent, a disk.

    A wait of ten minutes in NCCL ends the job, and until then it spins on the card that the engine samples with.
    """
    assert _control is not None, "join_ranks comes first"
    return _control


def initialize_distributed(parallel: ParallelConfig, seed: int) -> None:
    """Joins the process group of RANK, WORLD_SIZE and MASTER_*, cuts it by `parallel`, seeds all generators.

    Raises UserError where the world size does not hold a whole number of model replicas.
    """
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    check_world(parallel, int(os.environ["WORLD_SIZE"]))
    join_ranks()
    cut_ranks(parallel)
    torch.manual_seed(seed)
    model_parallel_cuda_manual_seed(seed)


def join_ranks() -> None:
    """Joins the process group of RANK, WORLD_SIZE and MASTER_*, and makes the control group. Collective."""
    global _control
    dist.init_process_group(backend().process_group)
    _control = dist.new_group(backend=CONTROL, timeout=CONTROL_LIMIT)


def cut_ranks(parallel: ParallelConfig) -> None:
    """Makes Megatron's groups out of the ranks of the process group. Raises UserError as `check_world` does."""
    from megatron.core import parallel_state

    global _layout
    check_world(parallel, dist.get_world_size())
    _layout = parallel
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=parallel.tensor,
        pipeline_model_parallel_size=parallel.pipeline,
        virtual_pipeline_model_parallel_size=parallel.virtual_pipeline if parallel.virtual_pipeline > 1 else None,
        context_parallel_size=parallel.context,
        expert_model_parallel_size=parallel.expert,
        expert_tensor_parallel_size=parallel.expert_tensor,
        create_gloo_process_groups=False,
    )
