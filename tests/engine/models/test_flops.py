import json
from math import prod

import pytest

from cascade_rl.engine.models import family_of
from cascade_rl.engine.models.flops import SequenceCost, sequence_cost
from tests.engine.models import tiny

HIDDEN, VOCABULARY = 64, 1000
NEMOTRON_H = {
    "architectures": ["NemotronHForCausalLM"],
    "hidden_size": HIDDEN,
    "vocab_size": VOCABULARY,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "layer_norm_epsilon": 1e-5,
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "n_groups": 2,
    "ssm_state_size": 24,
    "n_routed_experts": 10,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "moe_shared_expert_intermediate_size": 80,
    "routed_scaling_factor": 1.0,
}
HEAD = 2 * HIDDEN * VOCABULARY
MATRICES = {
    "M": HIDDEN * (2 * 128 + 2 * 2 * 24 + 8) + 128 * HIDDEN,  # in, out
    "*": HIDDEN * (4 * 32 + 2 * 2 * 32) + 4 * 32 * HIDDEN,  # q, k, v, out
    "-": 2 * HIDDEN * 96,
    "E": HIDDEN * 10 + 2 * HIDDEN * (3 * 40 + 80),  # router, three experts, the shared one
}
SCAN = 7 * 128 * 24


@pytest.mark.parametrize("symbol", MATRICES)
def test_a_token_costs_two_for_each_number_of_the_matrices_it_meets(symbol: str):
    cost = sequence_cost(NEMOTRON_H | {"hybrid_override_pattern": symbol * 3})
    scan = SCAN if symbol == "M" else 0
    assert cost.per_token == HEAD + 3 * (2 * MATRICES[symbol] + scan)
    assert cost.per_pair == (3 * 2 * 4 * 32 if symbol == "*" else 0)


def test_a_dense_model_costs_twice_its_matrices():
    """SmolLM2-135M: 134,515,008 numbers, of which 61 norms of 576 are no matrices."""
    smollm2 = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_act": "silu",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_attention_heads": 9,
        "num_hidden_layers": 30,
        "num_key_value_heads": 3,
        "rms_norm_eps": 1e-5,
        "vocab_size": 49152,
    }
    assert sequence_cost(smollm2).per_token == 2 * (134_515_008 - 61 * 576)


@pytest.mark.parametrize("queries", [40, None])
def test_latent_attention_costs_its_matrices_and_its_wide_keys(queries: int | None):
    """Keys of 24 + 8 channels, values of 20. The embedding is as large as the head, which alone costs."""
    hf = json.loads(tiny.deepseek_v3(num_hidden_layers=1, q_lora_rank=queries).to_json_string(use_diff=False))
    hf |= {"architectures": ["DeepseekV3ForCausalLM"], "qk_nope_head_dim": 24}
    tensors = family_of(hf).name_map(hf).hf_tensors()
    matrices = sum(prod(tensor.shape) for name, tensor in tensors.items() if len(tensor.shape) == 2)
    assert sequence_cost(hf).per_token == 2 * (matrices - tiny.VOCABULARY * 64)
    assert sequence_cost(hf).per_pair == 4 * (24 + 8 + 20)


@pytest.mark.parametrize("experts", [4, 8])
def test_gates_and_delta_nets_cost_their_matrices_and_the_rule(experts: int):
    """All experts are chosen, so that each matrix is met, and a convolution's weights are met once too."""
    hf = json.loads(tiny.qwen3_next(num_experts=experts, num_experts_per_tok=experts).to_json_string(use_diff=False))
    hf |= {"architectures": ["Qwen3NextForCausalLM"]}
    tensors = family_of(hf).name_map(hf).hf_tensors()
    matrices = sum(prod(tensor.shape) for tensor in tensors.values() if len(tensor.shape) > 1)
    rule = 4 * 8 * 12 * 8  # 8 heads of 12 channels of values and 8 of keys
    assert sequence_cost(hf).per_token == 2 * (matrices - tiny.VOCABULARY * 64 + rule)
    assert sequence_cost(hf).per_pair == 4 * (16 + 16)


def test_only_pairs_of_tokens_of_one_sequence_attend():
    assert SequenceCost(per_token=3.0, per_pair=2.0).of([1, 10]) == [5.0, 230.0]
