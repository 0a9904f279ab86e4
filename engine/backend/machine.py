"""Chooses between CPU and CUDA; the rest of the engine asks `backend()`."""

import os
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from cascade_rl.engine.backend import cpu_shim
from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.precisions import ON_CPU, ON_GPU, check_gpu_precision
from cascade_rl.engine.core.settings import Precision

# Who reads them: PyTorch, Triton, FlashInfer, and vLLM, which keeps DeepGEMM's below its own.
COMPILED = {
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "VLLM_CACHE_ROOT": "vllm",
}
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
        raise NotImplementedError

    def spec_provider(self) -> Any:
        raise NotImplementedError

    def check_passed(self, fields: dict[str, Any]) -> None:
        """Raises UserError for a field of `parallel.megatron` that this machine cannot give what it asks."""
        raise NotImplementedError

    def at_rest(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the host, in memory from which the device copies fastest."""
        raise NotImplementedError

    def release(self) -> None:
        """Gives device memory that is not in use to other processes."""
        raise NotImplementedError

    def keep_compiled(self, folder: Path) -> None:
        """What this process and its children compile is kept in `folder`, unless their environment says where."""
        raise NotImplementedError


def keep_compiled(folder: Path) -> None:
    """What this process and its children compile for a card is kept in `folder`, unless the environment says where."""
    for variable, name in COMPILED.items():
        os.environ.setdefault(variable, str(folder / name))


class CudaBackend(Backend):
    def check_precision(self, precision: Precision) -> None:
        check_gpu_precision(precision)

    def spec_provider(self) -> Any:
        from megatron.core.extensions.transformer_engine_spec_provider import TESpecProvider

        return TESpecProvider()

    def check_passed(self, fields: dict[str, Any]) -> None: ...

    def at_rest(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.pin_memory()

    def release(self) -> None:
        torch.cuda.empty_cache()

    def keep_compiled(self, folder: Path) -> None:
        keep_compiled(folder)


class CpuBackend(Backend):
    def check_precision(self, precision: Precision) -> None: ...

    def spec_provider(self) -> Any:
        from cascade_rl.engine.backend.torch_layers import TorchSpecProvider

        return TorchSpecProvider()

    def check_passed(self, fields: dict[str, Any]) -> None:
        for name in fields.keys() & {*self.config_overrides, "optimizer_cpu_offload"}:
            if fields[name]:
                raise UserError(
                    f"parallel.megatron.{name}: expected false on a machine without CUDA, which has neither a card's "
                    "kernels nor a memory beside the host's; found true. Leave the field out here."
                )

    def at_rest(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def release(self) -> None: ...

    def keep_compiled(self, folder: Path) -> None: ...


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
        return CudaBackend(device, "nccl", fusions, ("alltoall", "allgather", *_flex()), ON_GPU)
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
        ON_CPU,
    )
