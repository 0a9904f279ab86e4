"""Two tiny models and the pairs of layouts that refits are tested between."""

from dataclasses import dataclass
from math import prod

import numpy as np

from cascade_rl.engine.core.settings import ParallelConfig
from cascade_rl.engine.models import family_of
from cascade_rl.engine.models.name_map import Block, Cut
from cascade_rl.engine.models.places import place_of
from cascade_rl.engine.refit.plan import Member, Place
from cascade_rl.engine.refit.vllm_map import WorkerPlace

NEMOTRON = {
    "architectures": ["NemotronHForCausalLM"],
    "hybrid_override_pattern": "ME-*E",
    "hidden_size": 16,
    "vocab_size": 150,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "intermediate_size": 24,
    "mamba_num_heads": 8,
    "mamba_head_dim": 2,
    "n_groups": 4,
    "ssm_state_size": 3,
    "conv_kernel": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "moe_intermediate_size": 8,
    "moe_shared_expert_intermediate_size": 8,
    "routed_scaling_factor": 2.5,
    "layer_norm_epsilon": 1e-5,
    "max_position_embeddings": 128,
}
QWEN3_MOE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "hidden_size": 16,
    "vocab_size": 150,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "intermediate_size": 24,
    "moe_intermediate_size": 8,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "max_position_embeddings": 128,
}
QWEN3_NEXT = QWEN3_MOE | {
    "architectures": ["Qwen3NextForCausalLM"],
    "full_attention_interval": 2,
    "shared_expert_intermediate_size": 8,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 2,
    "linear_value_head_dim": 3,
    "linear_conv_kernel_dim": 4,
}
SIGMOID_EXPERTS = {
    "n_routed_experts": 4,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "first_k_dense_replace": 1,
}
GLM4_MOE = (
    {key: value for key, value in QWEN3_MOE.items() if "expert" not in key}
    | SIGMOID_EXPERTS
    | {
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "attention_bias": True,
        "use_qk_norm": True,
        "num_nextn_predict_layers": 0,
    }
)
DEEPSEEK_V3 = (
    {key: value for key, value in GLM4_MOE.items() if key not in ("head_dim", "num_key_value_heads", "use_qk_norm")}
    | {"kv_lora_rank": 12, "q_lora_rank": 20, "qk_nope_head_dim": 6, "qk_rope_head_dim": 2, "v_head_dim": 5}
    | {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "attention_bias": False}
    | {"topk_method": "noaux_tc", "scoring_func": "sigmoid"}
)
MODELS = {"nemotron_h": NEMOTRON, "qwen3_moe": QWEN3_MOE}


@dataclass(frozen=True)
class Pair:
    """`ranks` trainer ranks of a layout, and `engines` engines of `tensor` workers.

    colocated: worker i is on the card of rank i, and every two cards are a node
    """

    name: str
    parallel: ParallelConfig
    ranks: int
    tensor: int = 1
    engines: int = 1
    expert: bool = False
    colocated: bool = False

    def trainers(self) -> list[Member[Place]]:
        places = [place_of(rank, self.ranks, self.parallel) for rank in range(self.ranks)]
        return [Member(place, f"card {i}", f"node {i // 2}") for i, place in enumerate(places)]

    def workers(self) -> list[Member[WorkerPlace]]:
        first = 0 if self.colocated else self.ranks
        cuts = [Cut(i % self.tensor, self.tensor) for i in range(self.engines * self.tensor)]
        places = [WorkerPlace(cut, cut if self.expert else Cut()) for cut in cuts]
        return [Member(place, f"card {i}", f"node {i // 2}") for i, place in enumerate(places, first)]


PAIRS = [
    Pair("TP1 to TP1", ParallelConfig(), 1),
    Pair("TP1 to TP2", ParallelConfig(), 1, tensor=2),
    Pair("TP2 to TP1", ParallelConfig(tensor=2, sequence=True), 2),
    Pair("TP4 to TP2 EP2", ParallelConfig(tensor=4, sequence=True), 4, tensor=2, expert=True),
    Pair("DP2 to two engines", ParallelConfig(), 2, engines=2),
    Pair("EP4 to TP2", ParallelConfig(expert=4), 4, tensor=2),
    Pair("PP2 to TP2", ParallelConfig(pipeline=2), 2, tensor=2),
    Pair("TP2 PP2 EP2 to TP4", ParallelConfig(tensor=2, pipeline=2, expert=2, sequence=True), 4, tensor=4),
    Pair("TP2 ETP2 to TP1", ParallelConfig(tensor=2, expert_tensor=2, sequence=True), 2),
    Pair("TP2 EP2 ETP2 to TP4", ParallelConfig(tensor=2, expert=2, expert_tensor=2, sequence=True), 4, tensor=4),
    Pair("PP2 x 2 to TP1", ParallelConfig(pipeline=2, virtual_pipeline=2), 2),
    Pair("uneven PP2 to TP2", ParallelConfig(pipeline=2, pipeline_layers=(1, 3)), 2, tensor=2),
    Pair("TP2 to TP2 in place", ParallelConfig(tensor=2, sequence=True), 2, tensor=2, colocated=True),
    Pair("EP2 DP2 to two engines in place", ParallelConfig(expert=2), 2, engines=2, colocated=True),
    Pair(
        "TP2 PP2 ETP2 to two TP2 in place",
        ParallelConfig(tensor=2, pipeline=2, expert_tensor=2, sequence=True),
        4,
        tensor=2,
        engines=2,
        colocated=True,
    ),
    Pair("EP4 to TP4 EP4 in place", ParallelConfig(expert=4), 4, tensor=4, expert=True, colocated=True),
]


def fitting(pair: Pair, hf: dict) -> Pair:
    """Uneven stages have as many layers as the model."""
    layers = len(family_of(hf).pattern(hf))
    if pair.parallel.pipeline_layers is None:
        return pair
    return Pair(pair.name, ParallelConfig(pipeline=2, pipeline_layers=(1, layers - 1)), pair.ranks, pair.tensor)


def hf_numbers(hf: dict) -> dict[str, np.ndarray]:
    """HF tensors no two of whose numbers are equal: whole, below 2**24, but for logarithms."""
    first, tensors = 1, {}
    for name, tensor in family_of(hf).name_map(hf).hf_tensors().items():
        count = prod(tensor.shape)
        tensors[name] = np.arange(first, first + count, dtype=np.float32).reshape(tensor.shape)
        if name.endswith("A_log"):
            tensors[name] /= first + count
        first += count
    return tensors


def laid_out(shape: tuple[int, ...], blocks: tuple[Block, ...], tensors: dict[str, np.ndarray]) -> np.ndarray:
    """A shard, with NaN in its padding."""
    shard = np.full(shape, np.nan, np.float32)
    for block in blocks:
        shard[block.shard_index] = tensors[block.hf_name][block.hf_index]
    return shard
