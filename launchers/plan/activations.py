"""Bytes that a training pass keeps for backward, for each token of a rank. No layer is recomputed: the trainer leaves
Megatron's `recompute_granularity` at None.

Counted from the modules of Megatron-Core 0.19 that the layer spec names. `tests/launchers/plan/test_plan.py` compares
with what autograd saves in them. Of the kernels that this machine lacks, from their sources: Transformer Engine's
LayerNormLinear keeps its input, the normed input and a float32 per row; attention its queries, keys, values, outputs
and a float32 per head; `mamba_split_conv1d_scan_combined` its input and the scan's output before the gate, and
computes the convolution and the states again.

Letters: T tensor parallel ranks; S those that share the rows of the residual stream, T under sequence parallelism
and otherwise 1. Tokens of experts are taken as spread evenly over their ranks.
"""

from dataclasses import dataclass
from typing import Any

from cascade_rl.engine.core.settings import ParallelConfig
from cascade_rl.launchers.plan.model import Model

FLOAT32, INT64 = 4, 8


@dataclass(frozen=True)
class Cuts:
    """T and S."""

    tensor: int
    rows: int

    @classmethod
    def of(cls, parallel: ParallelConfig) -> "Cuts":
        return cls(parallel.tensor, parallel.tensor if parallel.sequence else 1)


def layer_bytes(model: Model, symbol: str, parallel: ParallelConfig) -> float:
    """Of one layer, for each token."""
    layers = {"*": _attention, "M": _mamba, "-": _mlp, "E": _experts}
    return layers[symbol](model, model.config, Cuts.of(parallel))


def embedding_bytes() -> int:
    """The ids."""
    return INT64


def final_bytes(model: Model, parallel: ParallelConfig) -> float:
    """Of the last norm its input; of the head, beside its exponentials, hidden states of all rows, targets, and four
    float32 of statistics."""
    row = model.itemsize * model.hidden
    return (row + FLOAT32) / Cuts.of(parallel).rows + row + INT64 + 4 * FLOAT32


def _norm(model: Model, cuts: Cuts) -> float:
    """Input, normed input, root mean square."""
    return (2 * model.itemsize * model.hidden + FLOAT32) / cuts.rows


def _attention(model: Model, config: dict[str, Any], cuts: Cuts) -> float:
    heads, groups, width = (config[key] for key in ("num_attention_heads", "num_query_groups", "kv_channels"))
    query, key, local_groups = heads * width / cuts.tensor, groups * width / cuts.tensor, groups // cuts.tensor
    numbers = query + 2 * key if local_groups else heads * width + 2 * groups * width  # gathered for the groups' sake
    statistics = heads / cuts.tensor  # log-sum-exp
    copied = query if local_groups > 1 else 0  # out of groups that queries, keys and values share
    if model.qk_norm:
        numbers += copied
        statistics += (heads + groups) / cuts.tensor
    if model.rotary:
        numbers += query + key + 4 * width  # turned, and the cosines and sines of both
    elif not model.qk_norm:
        numbers += copied
    return _norm(model, cuts) + model.itemsize * (numbers + query) + FLOAT32 * statistics


def _mamba(model: Model, config: dict[str, Any], cuts: Cuts) -> float:
    heads, groups = config["mamba_num_heads"], config["mamba_num_groups"]
    channels = heads * config["mamba_head_dim"]
    projected = 2 * channels + 2 * groups * config["mamba_state_dim"] + heads
    scan, gated, normed = channels, channels, channels
    numbers = (projected + scan + gated + normed) / cuts.tensor
    return _norm(model, cuts) + model.itemsize * numbers + FLOAT32 * groups / cuts.tensor


def _mlp(model: Model, config: dict[str, Any], cuts: Cuts) -> float:
    return _norm(model, cuts) + model.itemsize * _activated(config) * config["ffn_hidden_size"] / cuts.tensor


def _activated(config: dict[str, Any]) -> int:
    """Multiples of the width: relu and its square; or gate and up, silu, up plus the offset, their product."""
    return 5 if config["gated_linear_unit"] else 2


def _experts(model: Model, config: dict[str, Any], cuts: Cuts) -> float:
    """Each choice of a token brings a copy of its row to an expert; one more product, with the router's weight."""
    topk, experts, width = (config[key] for key in ("moe_router_topk", "num_moe_experts", "moe_ffn_hidden_size"))
    choice = model.itemsize * (model.hidden + (_activated(config) + 1) * width) + FLOAT32
    shared = _activated(config) * config.get("moe_shared_expert_intermediate_size", 0) / cuts.tensor
    return _norm(model, cuts) + (topk * choice + _router(config, experts, topk)) / cuts.rows + model.itemsize * shared


def _router(config: dict[str, Any], experts: int, topk: int) -> int:
    """Chosen ids, their scores, the order of the copies, and which tokens go to each expert; sigmoid routers keep all
    scores and their sum."""
    scores = FLOAT32 * (experts + 1) if config.get("moe_router_score_function") == "sigmoid" else 0
    return scores + (2 * INT64 + FLOAT32) * topk + INT64 * experts
