"""Bytes per token that a training pass keeps for backward on a rank.

The counts follow the modules of Megatron-Core 0.19 that the layer spec names. `tests/launchers/plan/test_plan.py`
compares them with what autograd saves. The counts of kernels that do not run on a CPU come from their sources.
Transformer Engine's LayerNormLinear keeps its input, the normed input and one float32 per row. Attention keeps its
queries, keys, values and outputs, and one float32 per head. `mamba_split_conv1d_scan_combined` keeps its input and the
scan's output before the gate; it recomputes the convolution and the states. FLA's `chunk_gated_delta_rule` keeps its
inputs and, for each head, a token's row of a chunk's triangular inverse; its `causal_conv1d` keeps its input.

T is the number of tensor parallel ranks. S is the number of ranks that share the rows of the residual stream: T under
sequence parallelism, otherwise 1. The tokens are assumed to spread evenly over the expert parallel ranks.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cascade_rl.engine.core.settings import ParallelConfig
from cascade_rl.engine.models.flops import head_widths
from cascade_rl.launchers.plan.model import Model, trained_itemsize

FLOAT32, INT64 = 4, 8
DELTA_CHUNK = 64  # tokens of a chunk of FLA's gated delta rule


@dataclass(frozen=True)
class Cuts:
    """T and S of the module docstring, the context parallel ranks, the bytes of an activation, and the parts of layers
    that are computed again."""

    tensor: int
    rows: int
    context: int
    itemsize: int
    again: frozenset[str] = frozenset()

    @classmethod
    def of(cls, parallel: ParallelConfig) -> "Cuts":
        rows = parallel.tensor if parallel.sequence else 1
        return cls(parallel.tensor, rows, parallel.context, trained_itemsize(parallel))


def layer_bytes(model: Model, symbol: str, parallel: ParallelConfig) -> float:
    """Bytes per token of one layer, nothing of which is recomputed; `symbol` is its letter in the hybrid pattern."""
    return LAYERS[symbol](model, model.config, Cuts.of(parallel))


def kept_bytes(model: Model, symbol: str, parallel: ParallelConfig) -> float:
    """Bytes per token of one layer from its forward to its backward pass. Recomputed in full, it keeps its input."""
    cuts = replace(Cuts.of(parallel), again=frozenset(parallel.recompute))
    return (
        cuts.itemsize * model.hidden / cuts.rows if "full" in cuts.again else LAYERS[symbol](model, model.config, cuts)
    )


def embedding_bytes() -> int:
    """Bytes per token of the embedding: its ids."""
    return INT64


def final_bytes(model: Model, parallel: ParallelConfig) -> float:
    """Bytes per token of the last norm and the head, without the head's exponentials.

    The norm keeps its input. The head keeps the hidden states of all rows, the targets, and four float32 of statistics.
    """
    cuts = Cuts.of(parallel)
    row = cuts.itemsize * model.hidden
    return (row + FLOAT32) / cuts.rows + row + INT64 + 4 * FLOAT32


def _norm(model: Model, cuts: Cuts) -> float:
    """Keeps the input, the normed input and the root mean square."""
    return (2 * cuts.itemsize * model.hidden + FLOAT32) / cuts.rows


def _attention(model: Model, config: dict[str, Any], cuts: Cuts) -> float:
    heads, groups, width = (config[key] for key in ("num_attention_heads", "num_query_groups", "kv_channels"))
    query, key, local_groups = heads * width / cuts.tensor, groups * width / cuts.tensor, groups // cuts.tensor
    gate = heads * width if config.get("attention_output_gate") else 0
    fused = heads * width + gate + 2 * groups * width
    numbers = fused / cuts.tensor if local_groups else fused  # all heads are gathered
    statistics = 0 if "core_attn" in cuts.again else heads / cuts.tensor  # log-sum-exp
    copied = query if local_groups > 1 else 0  # queries, copied out of the fused groups of queries, keys and values
    if model.qk_norm:
        numbers += copied
        statistics += (heads + groups) / cuts.tensor
    if model.rotary:
        numbers += query + key + 4 * width * model.rotary  # rotated queries and keys, cosines and sines of both
    elif not model.qk_norm:
        numbers += copied
    if gate:
        numbers += query  # the product with the gate
        statistics += query  # the gate's sigmoid
    return _norm(model, cuts) + cuts.itemsize * (numbers + query) + FLOAT32 * statistics


def _latent_attention(model: Model, config: dict[str, Any], cuts: Cuts) -> float:
    """Values are padded to the width of the keys, as is what attention gives; of that a narrow copy goes on."""
    (width, value), heads = head_widths(config), config["num_attention_heads"] / cuts.tensor
    latents = 2 * (config["kv_lora_rank"] + (config["q_lora_rank"] or 0)) + config["qk_pos_emb_head_dim"]
    rows = cuts.itemsize * latents + FLOAT32 * (2 if config["q_lora_rank"] else 1)  # and the norms' statistics
    turned = 4 * config["qk_pos_emb_head_dim"]  # the cosines and sines of queries and of keys
    padded = 2 * heads * width if value < width else heads * value
    statistics = 0 if "core_attn" in cuts.again else FLOAT32 * heads  # log-sum-exp
    numbers = 2 * heads * width + padded + heads * value + turned
    return _norm(model, cuts) + rows / cuts.rows + cuts.itemsize * numbers + statistics


def _mamba(model: Model, config: dict[str, Any], cuts: Cuts) -> float:
    heads, groups = config["mamba_num_heads"], config["mamba_num_groups"]
    channels = heads * config["mamba_head_dim"]
    # context parallel ranks share the heads; where there are fewer groups than ranks, each rank has a copy of its own
    copies = max(groups, cuts.tensor * cuts.context)
    projected = 2 * channels + 2 * copies * config["mamba_state_dim"] + heads
    scan, gated, normed = channels, channels, channels
    numbers = (projected + scan + gated + normed) / cuts.tensor
    return _norm(model, cuts) + cuts.itemsize * numbers + FLOAT32 * groups / cuts.tensor


def _delta_net(model: Model, config: dict[str, Any], cuts: Cuts) -> float:
    """Queries and keys are normed, then repeated for the heads of values. The output's gate is widened to float32."""
    heads, width = config["linear_num_value_heads"], config["linear_key_head_dim"]
    keys, values = config["linear_num_key_heads"] * width, heads * config["linear_value_head_dim"]
    projected = 2 * keys + 2 * values + 2 * heads
    rule = 2 * heads * width + values + heads * DELTA_CHUNK  # copies of its inputs, and the inverses
    gated = 3 * values  # the rule's output, normed, and in the model's dtype again
    statistics = 2 * values + 5 * heads + 2 * config["linear_num_key_heads"]
    numbers = projected + 2 * keys + rule + gated
    return _norm(model, cuts) + (cuts.itemsize * numbers + FLOAT32 * statistics) / cuts.tensor


def _mlp(model: Model, config: dict[str, Any], cuts: Cuts) -> float:
    activated = 0 if "mlp" in cuts.again else _activated(config)
    return _norm(model, cuts) + cuts.itemsize * activated * config["ffn_hidden_size"] / cuts.tensor


def _activated(config: dict[str, Any]) -> int:
    """Kept tensors of the MLP's width: relu and its square; or gate, up, silu, up plus offset, and their product."""
    return 5 if config["gated_linear_unit"] else 2


def _experts(model: Model, config: dict[str, Any], cuts: Cuts) -> float:
    """Each chosen expert gets a copy of the token's row. The product with the router's weight is kept too."""
    if "moe" in cuts.again:
        return _norm(model, cuts)
    topk, experts, width = (config[key] for key in ("moe_router_topk", "num_moe_experts", "moe_ffn_hidden_size"))
    activated = (2 if config["gated_linear_unit"] else 1) if "moe_act" in cuts.again else _activated(config) + 1
    choice = cuts.itemsize * (model.hidden + activated * width) + FLOAT32
    own_shared = 0 if "shared_experts" in cuts.again else config.get("moe_shared_expert_intermediate_size", 0)
    shared = _activated(config) * own_shared / cuts.tensor
    normed = cuts.itemsize * model.hidden / cuts.rows if "layernorm" in cuts.again else 0  # not fused in these layers
    gated = cuts.itemsize * model.hidden / cuts.rows if config.get("moe_shared_expert_gate") else 0
    return (
        _norm(model, cuts)
        - normed
        + gated
        + (topk * choice + _router(config, experts, topk)) / cuts.rows
        + cuts.itemsize * shared
    )


def _router(config: dict[str, Any], experts: int, topk: int) -> int:
    """Keeps the chosen ids and scores, the order of the copies, and the map of tokens to experts. A sigmoid router also
    keeps all scores and their sum."""
    scores = FLOAT32 * (experts + 1) if config.get("moe_router_score_function") == "sigmoid" else 0
    return scores + (2 * INT64 + FLOAT32) * topk + INT64 * experts


LAYERS: Mapping[str, Callable[[Model, dict[str, Any], Cuts], float]] = {
    "*": _attention,
    "+": _latent_attention,
    "M": _mamba,
    "G": _delta_net,
    "-": _mlp,
    "E": _experts,
}
