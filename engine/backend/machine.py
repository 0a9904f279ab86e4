"""Chooses between CPU and CUDA; the rest of the engine asks `backend()`."""

import os
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch

from cascade_rl.engine.backend import cpu_shim
from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.settings import Precision

CONTROL = "gloo"  # process group of what ranks tell each other beside their work, on any machine


@dataclass(frozen=True)
class Backend:
    """What differs between CPU and CUDA.

    config_overrides are TransformerConfig fields. dispatchers and precisions are the values of
    `RouterConfig.dispatcher` and `ParallelConfig.precision` that it supports.
    """

    device: torch.device
    process_group: str
    config_overrides: dict[str, Any]
    dispatchers: tuple[str, ...]
    precisions: tuple[Precision, ...]

    def check_precision(self, precision: Precision) -> None:
        """Raises UserError for a precision in which this machine cannot train."""
        if precision not in self.precisions:
            raise UserError(
                f"parallel.precision: expected {' or '.join(self.precisions)} on this machine, found {precision}. "
                "In float32 Transformer Engine has no attention under context parallelism, and without it only one "
                "that holds [sequences, heads, longest, longest] scores: set parallel.precision=bfloat16"
            )

    def spec_provider(self) -> Any:
        raise NotImplementedError

    def at_rest(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the host, in memory from which the device copies fastest."""
        raise NotImplementedError

    def release(self) -> None:
        """Gives device memory that is not in use to other processes."""
        raise NotImplementedError


class CudaBackend(Backend):
    def spec_provider(self) -> Any:
        from megatron.core.extensions.transformer_engine_spec_provider import TESpecProvider

        return TESpecProvider()

    def at_rest(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.pin_memory()

    def release(self) -> None:
        torch.cuda.empty_cache()


class CpuBackend(Backend):
    def spec_provider(self) -> Any:
        from cascade_rl.engine.backend.torch_layers import TorchSpecProvider

        return TorchSpecProvider()

    def at_rest(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def release(self) -> None: ...


def _flex() -> tuple[str, ...]:
    """DeepEP is in no package index, and so in no lock (docs/gpu.md)."""
    return ("flex",) if find_spec("deep_ep") else ()


@cache
def backend() -> Backend:
    """The backend of this process; the first call installs the CPU shim where there is no CUDA."""
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
        fusions = {"moe_permute_fusion": True, "gradient_accumulation_fusion": False}
        return CudaBackend(device, "nccl", fusions, ("alltoall", "allgather", *_flex()), ("bfloat16",))
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
        ("float32", "bfloat16"),
    )
