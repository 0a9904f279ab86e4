"""Runs the unmodified megatron-core wheel on CPU and gloo: a list of named patches, each with its reason.

Guarantees: nothing is patched where CUDA exists; every torch.cuda call that is not named here keeps raising
torch's own error, so that an unknown path fails loudly. The reasons are what was observed here without the patch, on
megatron-core 0.19.2.
"""

import contextlib
import os
from collections.abc import Callable
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

TESTED_MEGATRON = "0.19.2"
CPU = torch.device("cpu")


class InertStream:
    """A CUDA stream or event: CPU work is synchronous, so every ordering primitive is already satisfied."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None: ...

    def _ordered(self, *_args: Any, **_kwargs: Any) -> "InertStream":
        return self

    wait_stream = wait_event = record_event = record = wait = synchronize = _ordered

    def query(self) -> bool:
        return True


_STREAM = InertStream()

TORCH_CUDA: dict[str, tuple[Any, str]] = {
    "current_device": (lambda: CPU, "used as device=... in about 70 places"),
    "current_stream": (lambda *_: _STREAM, "token dispatcher and gradient buffer order their side streams"),
    "Stream": (InertStream, "token dispatcher, shared experts"),
    "Event": (InertStream, "shared-expert overlap"),
    "stream": (lambda *_: contextlib.nullcontext(), "shared-expert overlap"),
    "synchronize": (lambda *_: None, "pipeline send/receive and checkpoint writer wait for the device"),
    "get_rng_state": (
        lambda *_, **__: torch.get_rng_state(),
        "RNG tracker: the CPU generator is the device's",
    ),
    "manual_seed": (torch.default_generator.manual_seed, "torch's own would silently seed nothing"),
}


class CudaToCpu(TorchFunctionMode):
    """Redirects Megatron's CUDA literals: device="cuda", pin_memory, Tensor.cuda(), Tensor.type()."""

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs = {**kwargs, "device": CPU}
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:
            # the optimizer asserts parameter types by the name "torch.cuda.FloatTensor"
            return func(*args).replace("torch.", "torch.cuda.")
        return func(*args, **kwargs)


def _patch_rng_tracker() -> None:
    """Its accessors reach torch.cuda.default_generators directly, and setting a state would do nothing."""
    from megatron.core.tensor_parallel import random

    random._get_cuda_rng_state = lambda *_, **__: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, *_, **__: torch.set_rng_state(state)


def _patch_all_to_all_splits() -> None:
    """The dispatcher leaves split sizes of CPU tensors as tensors; all_to_all_single wants integers."""
    from megatron.core.transformer.moe import token_dispatcher

    def to_host(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor

    token_dispatcher.maybe_move_tensor_to_cpu = to_host


def _patch_uneven_collectives() -> None:
    """gloo has neither all_gatherv nor reduce_scatterv, which expert tensor parallelism needs."""
    from megatron.core.tensor_parallel import mappings

    even_gather, even_scatter = mappings._gather_along_first_dim, mappings._reduce_scatter_along_first_dim

    def gather(x: Any, group: Any, output_split_sizes: Any = None, use_global_buffer: bool = False) -> Any:
        if output_split_sizes is None or group.size() == 1:
            return even_gather(x, group, output_split_sizes, use_global_buffer)
        sizes = [int(size) for size in output_split_sizes]
        padded = x.new_zeros((max(sizes), *x.shape[1:]))
        padded[: x.size(0)] = x
        gathered = x.new_empty((len(sizes) * max(sizes), *x.shape[1:]))
        torch.distributed.all_gather_into_tensor(gathered, padded, group=group)
        return torch.cat([part[:size] for part, size in zip(gathered.split(max(sizes)), sizes, strict=True)])

    def scatter(x: Any, group: Any, input_split_sizes: Any = None, use_global_buffer: bool = False) -> Any:
        if input_split_sizes is None or group.size() == 1:
            return even_scatter(x, group, input_split_sizes, use_global_buffer)
        total = x.contiguous().clone()
        torch.distributed.all_reduce(total, group=group)
        return total.split([int(size) for size in input_split_sizes])[group.rank()].contiguous()

    mappings._gather_along_first_dim, mappings._reduce_scatter_along_first_dim = gather, scatter


def _patch_adam_step_state() -> None:
    """Megatron reads checkpoints for Transformer Engine's Adam, which has no per-parameter "step"."""
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    set_states = DistributedOptimizer._set_main_param_and_optimizer_states
    DistributedOptimizer._set_main_param_and_optimizer_states = lambda self, param, tensors: set_states(
        self, param, {"step": None, **tensors}
    )


def _patch_checkpoint_writer() -> None:
    """Speed only: the writer's Manager is forked, since spawning imports everything again (12 s per rank)."""
    from megatron.core.dist_checkpointing.strategies import filesystem_async

    queue = filesystem_async.get_write_results_queue
    filesystem_async.get_write_results_queue = lambda mp_mode="fork": queue("fork")


def _patch_mamba() -> None:
    """mamba-ssm and causal-conv1d have no CPU build: the mixer's kernels are our plain-torch scan.

    Under context parallelism the mixer asks Transformer Engine which tokens of a packed row a rank holds.
    """
    from megatron.core.ssm import mamba_context_parallel, mamba_mixer

    from cascade_rl.engine.backend import ssm
    from cascade_rl.engine.backend.zigzag import zigzag

    mamba_mixer.HAVE_MAMBA_SSM = True
    mamba_mixer.mamba_split_conv1d_scan_combined = ssm.split_conv1d_scan
    mamba_mixer.ExtendedRMSNorm = ssm.GroupedRMSNorm
    mamba_mixer._check_mamba_sequence_packing_support = lambda for_inference_not_training=True: (
        not for_inference_not_training,
        "the plain-torch scan serves training only",
    )
    mamba_context_parallel.is_te_min_version = lambda *_, **__: True
    mamba_context_parallel.tex = SimpleNamespace(
        thd_get_partitioned_indices=lambda cu_seqlens, _tokens, size, rank: zigzag(cu_seqlens, size, rank)
    )


def _patch_delta_net() -> None:
    """FLA's kernels are Triton's: here Megatron's gated delta net has the same functions in plain torch."""
    from megatron.core.ssm.gated_delta_net import common, gdn

    from cascade_rl.engine.backend import fla

    common.HAVE_FLA = True
    common.l2norm = fla.l2norm
    gdn.causal_conv1d = fla.causal_conv1d
    gdn.chunk_gated_delta_rule = fla.chunk_gated_delta_rule


def _patch_output_recompute() -> None:
    """Recompute of norms and activations asks Transformer Engine about fp8 whatever the dtype, and compiles C++ by
    which two tensors share memory: here the first gets a copy, of which autograd knows as little."""
    from megatron.core.tensor_parallel import random

    def refill(output: torch.Tensor, again: torch.Tensor) -> None:
        output.untyped_storage().resize_(again.untyped_storage().nbytes())
        output.untyped_storage().copy_(again.untyped_storage())

    random.FP8GlobalStateManager = SimpleNamespace(is_fp8_enabled=lambda: False)
    random.activation_recompute_forward = random.fp8_autocast = lambda **_: contextlib.nullcontext()
    random._get_share_storage = lambda: refill


def _patch_latent_attention() -> None:
    """Only of Transformer Engine's linear, which is absent, does it know that all tensor parallel ranks have it."""
    from megatron.core.transformer import multi_latent_attention

    from cascade_rl.engine.backend.torch_layers import TorchLinear

    multi_latent_attention.TELinear = TorchLinear


def _patch_final_norm() -> None:
    """HybridStack's final norm is hard-wired to Transformer Engine's."""
    from megatron.core.models.hybrid import hybrid_block

    from cascade_rl.engine.backend.torch_layers import TorchNorm

    hybrid_block.TENorm = TorchNorm


MEGATRON = (
    _patch_rng_tracker,
    _patch_all_to_all_splits,
    _patch_uneven_collectives,
    _patch_adam_step_state,
    _patch_checkpoint_writer,
    _patch_mamba,
    _patch_delta_net,
    _patch_output_recompute,
    _patch_latent_attention,
    _patch_final_norm,
)
_mode: CudaToCpu | None = None


def install() -> None:
    """Applies every patch, once per process. Raises RuntimeError on a megatron-core that was not tested."""
    global _mode
    if torch.cuda.is_available() or _mode is not None:
        return
    if (found := version("megatron-core")) != TESTED_MEGATRON:
        raise RuntimeError(
            f"the CPU shim is tested with megatron-core {TESTED_MEGATRON}, found {found}: "
            "install the pinned requirements (make setup)"
        )
    # Megatron's @jit_fuser is torch.compile: here it would spend 14 s in a C++ compiler for the same numbers. If
    # Megatron is not imported yet, torch's compiler need not be imported either.
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    torch.compiler.set_stance("force_eager")
    for name, (replacement, _reason) in TORCH_CUDA.items():
        setattr(torch.cuda, name, replacement)
    for patch in MEGATRON:
        patch()
    _mode = CudaToCpu()
    _mode.__enter__()
