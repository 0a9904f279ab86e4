"""The one place that knows CPU from CUDA; everything else asks `backend()`."""

import os
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from cascade_rl.engine import cpu_shim
from cascade_rl.engine.config import ParallelConfig
from cascade_rl.engine.errors import UserError


@dataclass(frozen=True)
class Backend:
    """What differs between the two machines.

    config_overrides are TransformerConfig fields; image_folder is where the weights of a refit are laid out
    for the sampler of the same host.
    """

    device: torch.device
    process_group: str
    config_overrides: dict[str, Any]
    image_folder: str = "/dev/shm"

    def spec_provider(self) -> Any:
        raise NotImplementedError


class CudaBackend(Backend):
    def spec_provider(self) -> Any:
        from megatron.core.extensions.transformer_engine_spec_provider import TESpecProvider

        return TESpecProvider()


class CpuBackend(Backend):
    def spec_provider(self) -> Any:
        from cascade_rl.engine.torch_layers import TorchSpecProvider

        return TorchSpecProvider()


@cache
def backend() -> Backend:
    """The backend of this process; the first call installs the CPU shim where there is no CUDA."""
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
        fusions = {"moe_permute_fusion": True, "gradient_accumulation_fusion": False}
        return CudaBackend(device, "nccl", fusions)
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
    )


def initialize_distributed(parallel: ParallelConfig, seed: int) -> None:
    """Joins the process group of RANK, WORLD_SIZE and MASTER_*, cuts it by `parallel`, seeds all generators.

    Raises UserError where the world size does not hold a whole number of model replicas.
    """
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    machine = backend()
    world = int(os.environ["WORLD_SIZE"])
    _check_world(parallel, world)
    torch.distributed.init_process_group(machine.process_group)
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=parallel.tensor,
        pipeline_model_parallel_size=parallel.pipeline,
        expert_model_parallel_size=parallel.expert,
        expert_tensor_parallel_size=parallel.expert_tensor,
    )
    torch.manual_seed(seed)
    model_parallel_cuda_manual_seed(seed)


def _check_world(parallel: ParallelConfig, world: int) -> None:
    for kind, size in (
        ("tensor x pipeline", parallel.tensor * parallel.pipeline),
        ("expert_tensor x expert x pipeline", parallel.expert_tensor * parallel.expert * parallel.pipeline),
    ):
        if world % size:
            raise UserError(
                f"{kind} parallel size {size} must divide the number of ranks, found {world} ranks: "
                f"change nproc or the parallel sizes"
            )
