"""Forward FLOPs of a sequence: linear in its length, except for attention, which is quadratic.

After `num_floating_point_operations` of NVIDIA/Megatron-LM 0.19, megatron/training/training.py: 2 for each weight and
token, half of the square for causal attention, 7 for each channel and state of Mamba's scan and 8 of a delta net's
rule. Backward costs twice the forward in every term, and tensor, context and expert parallelism divide every term, so
comparisons between sequences do not change.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from cascade_rl.engine.models.families.family import family_of
from cascade_rl.engine.models.hf_config import HfConfig, read


@dataclass(frozen=True)
class SequenceCost:
    """FLOPs of a sequence of n tokens: n * (per_token + n * per_pair)."""

    per_token: float
    per_pair: float

    def of(self, lengths: Sequence[int]) -> list[float]:
        return [n * (self.per_token + n * self.per_pair) for n in lengths]


def sequence_cost(hf: HfConfig) -> SequenceCost:
    """The cost model of a Hugging Face config.json. Raises UserError if the family is not supported."""
    pattern, config = family_of(hf).pattern(hf), family_of(hf).transformer_config(hf)
    matrices = {"M": _mamba, "G": _delta_net, "*": _attention, "+": _latent_attention, "-": _mlp, "E": _experts}
    weights = sum(pattern.count(symbol) * count(config) for symbol, count in matrices.items() if symbol in pattern)
    head = config["hidden_size"] * read(hf, "vocab_size")
    # q k^T and its product with v: 2 each for a pair of tokens, and half of the pairs
    attending = sum(map(pattern.count, "*+")) * config["num_attention_heads"]
    return SequenceCost(per_token=2.0 * (weights + head), per_pair=float(attending * sum(head_widths(config))))


def head_widths(config: dict) -> tuple[int, int]:
    """Channels of a head's query or key, and of its value; `config` has TransformerConfig fields."""
    if not config.get("multi_latent_attention"):
        return config["kv_channels"], config["kv_channels"]
    return config["qk_head_dim"] + config["qk_pos_emb_head_dim"], config["v_head_dim"]


def _attention(config: dict) -> float:
    query = config["num_attention_heads"] * config["kv_channels"]
    key_and_value = 2 * config["num_query_groups"] * config["kv_channels"]
    gate = query if config.get("attention_output_gate") else 0
    return config["hidden_size"] * (2 * query + gate + key_and_value)


def _latent_attention(config: dict) -> float:
    hidden, heads, latent = config["hidden_size"], config["num_attention_heads"], config["kv_lora_rank"]
    (query, value), queries = head_widths(config), config["q_lora_rank"]
    down = hidden * (latent + config["qk_pos_emb_head_dim"] + (queries or 0))
    up = heads * (query * (queries or hidden) + (config["qk_head_dim"] + value) * latent)
    return down + up + heads * value * hidden


def _mamba(config: dict) -> float:
    heads, state = config["mamba_num_heads"], config["mamba_state_dim"]
    channels = heads * config["mamba_head_dim"]
    projections = 3 * channels + 2 * config["mamba_num_groups"] * state + heads
    return config["hidden_size"] * projections + 7 / 2 * channels * state


def _delta_net(config: dict) -> float:
    """Of its convolution, unlike Mamba's, Megatron counts the products too."""
    heads, width = config["linear_num_value_heads"], config["linear_value_head_dim"]
    keys, values = config["linear_num_key_heads"] * config["linear_key_head_dim"], heads * width
    projections = 2 * keys + 3 * values + 2 * heads
    convolution = config["linear_conv_kernel_dim"] * (2 * keys + values)
    return config["hidden_size"] * projections + convolution + 4 * values * config["linear_key_head_dim"]


def _mlp(config: dict) -> float:
    return _feed_forward(config, config["ffn_hidden_size"])


def _experts(config: dict) -> float:
    router = config["hidden_size"] * config["num_moe_experts"]
    routed = config["moe_router_topk"] * config["moe_ffn_hidden_size"]
    gate = config["hidden_size"] if config.get("moe_shared_expert_gate") else 0
    return router + gate + _feed_forward(config, routed + config.get("moe_shared_expert_intermediate_size", 0))


def _feed_forward(config: dict, width: int) -> float:
    return (3 if config["gated_linear_unit"] else 2) * config["hidden_size"] * width
