"""The one place that knows CPU from CUDA; everything else asks `backend()`."""

import os
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from cascade_rl.engine.backend import cpu_shim
from cascade_rl.engine.core.settings import ParallelConfig
from cascade_rl.engine.models.layout import check_world


@dataclass(frozen=True)
class Backend:
    """What differs between the two machines.

    config_overrides are TransformerConfig fields, dispatchers the values of `RouterConfig.dispatcher` that work here.
    """

    device: torch.device
    process_group: str
    config_overrides: dict[str, Any]
    dispatchers: tuple[str, ...]

    def spec_provider(self) -> Any:
        raise NotImplementedError


class CudaBackend(Backend):
    def spec_provider(self) -> Any:
        from megatron.core.extensions.transformer_engine_spec_provider import TESpecProvider

        return TESpecProvider()


class CpuBackend(Backend):
    def spec_provider(self) -> Any:
        from cascade_rl.engine.backend.torch_layers import TorchSpecProvider

        return TorchSpecProvider()


@cache
def backend() -> Backend:
    """The backend of this process; the first call installs the CPU shim where there is no CUDA."""
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
        fusions = {"moe_permute_fusion": True, "gradient_accumulation_fusion": False}
        return CudaBackend(device, "nccl", fusions, ("alltoall", "allgather", "flex"))
    cpu_shim.install()
    return CpuBackend(
        torch.device("cpu"),
        "gloo",
        {
            "use_cpu_initialization": True,
            "bias_dropout_fusion": False,
            "gradient_accumulation_fusion": False,
            "apply_rope_fusion": False,
            "moe_permute_fusion": False,
            "moe_router_fusion": False,
        },
        ("alltoall", "allgather"),
    )


_layout: ParallelConfig | None = None


def layout() -> ParallelConfig:
    """What `cut_ranks` has cut the ranks by; Megatron's groups do not know the layers of a stage."""
    assert _layout is not None, "cut_ranks comes first"
    return _layout


def initialize_distributed(parallel: ParallelConfig, seed: int) -> None:
    """Joins the process group of RANK, WORLD_SIZE and MASTER_*, cuts it by `parallel`, seeds all generators.

    Raises UserError where the world size does not hold a whole number of model replicas.
    """
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    machine = backend()
    check_world(parallel, int(os.environ["WORLD_SIZE"]))
    torch.distributed.init_process_group(machine.process_group)
    cut_ranks(parallel)
    torch.manual_seed(seed)
    model_parallel_cuda_manual_seed(seed)


def cut_ranks(parallel: ParallelConfig) -> None:
    """Makes Megatron's groups out of the ranks of the process group. Raises UserError as `check_world` does."""
    from megatron.core import parallel_state

    global _layout
    check_world(parallel, torch.distributed.get_world_size())
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
