"""Experts that a sigmoid router chooses by biased scores, beside an MLP that all tokens share.

DeepSeek-V3's (arXiv 2412.19437, section 2.1.2), which GLM-4.5 and Nemotron-3 have too.
"""

from collections.abc import Iterator
from typing import Any

from cascade_rl.engine.models.families import layers
from cascade_rl.engine.models.hf_config import HfConfig, read, require
from cascade_rl.engine.models.name_map import Parameter, replicated


def require_supported(hf: HfConfig) -> None:
    """Raises UserError for a router that Megatron does not have."""
    require(hf, norm_topk_prob=True, scoring_func="sigmoid", topk_method="noaux_tc")
    if hf.get("n_group", 1) > 1:
        # HF ranks groups by their two best experts, Megatron by their topk / group_topk best
        require(hf, num_experts_per_tok=2 * read(hf, "topk_group"))


def transformer_config(hf: HfConfig, shared_width: int) -> dict[str, Any]:
    groups = hf.get("n_group", 1)
    return {
        "num_moe_experts": read(hf, "n_routed_experts"),
        "moe_ffn_hidden_size": read(hf, "moe_intermediate_size"),
        "moe_shared_expert_intermediate_size": shared_width,
        "moe_router_topk": read(hf, "num_experts_per_tok"),
        "moe_router_num_groups": groups if groups > 1 else None,
        "moe_router_group_topk": read(hf, "topk_group") if groups > 1 else None,
        "moe_router_topk_scaling_factor": read(hf, "routed_scaling_factor"),
        "moe_router_score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
    }


def layer(hf: HfConfig, number: int, prefix: str, norm: str, *, shared_width: int, gated: bool) -> Iterator[Parameter]:
    """Layer `number`, an `E` layer, whose HF tensors begin with `prefix`."""
    hidden, experts = read(hf, "hidden_size"), read(hf, "n_routed_experts")
    shared = layers.feed_forward(
        "mlp.shared_experts", f"{prefix}.shared_experts", hidden=hidden, width=shared_width, gated=gated
    )
    bias = {"mlp.router.expert_bias": replicated(f"{prefix}.gate.e_score_correction_bias", experts)}
    yield from layers.in_layer(number, layers.router(prefix, norm, hidden=hidden, experts=experts) | shared)
    yield from layers.in_layer(number, bias, float32=True)
    width = read(hf, "moe_intermediate_size")
    yield from layers.routed_experts(number, prefix, experts=experts, hidden=hidden, width=width, gated=gated)
