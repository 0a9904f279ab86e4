"""Tiny random models of the families, as transformers saves them."""

from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    Glm4MoeConfig,
    Glm4MoeLiteConfig,
    LlamaConfig,
    NemotronHConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3NextConfig,
)

VOCABULARY = 200  # not a multiple of anything that pads it
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
}


def nemotron_h(**changes: object) -> PretrainedConfig:
    sizes = {
        "hybrid_override_pattern": "MEM*E-",
        "ssm_state_size": 16,
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "n_groups": 2,
        "chunk_size": 16,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "moe_intermediate_size": 32,
        "moe_shared_expert_intermediate_size": 48,
        "routed_scaling_factor": 2.5,
        "time_step_min": 1e-9,  # transformers clamps there, Megatron and vLLM do not
    }
    return NemotronHConfig(**SIZES | sizes | changes)


def qwen3(**changes: object) -> PretrainedConfig:
    return Qwen3Config(**SIZES | {"num_hidden_layers": 2, "rope_theta": 5e5} | changes)


def qwen3_moe(**changes: object) -> PretrainedConfig:
    experts = {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
    }
    return Qwen3MoeConfig(**SIZES | experts | {"num_hidden_layers": 2} | changes)


DELTA_NET = {
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
}


def qwen3_next(**changes: object) -> PretrainedConfig:
    experts = {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 48,
    }
    kind = {"num_hidden_layers": 2, "full_attention_interval": 2, "rope_theta": 100.0}
    return Qwen3NextConfig(**SIZES | experts | DELTA_NET | kind | changes)


def qwen2(**changes: object) -> PretrainedConfig:
    return Qwen2Config(**SIZES | {"num_hidden_layers": 2} | changes)


# As in Llama 3.2, but from a context of 32 tokens: of eight frequencies one stays, two are between, five are divided.
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def llama(**changes: object) -> PretrainedConfig:
    kind = {"num_hidden_layers": 2, "tie_word_embeddings": True, "rope_parameters": dict(LLAMA3_ROPE)}
    return LlamaConfig(**SIZES | kind | changes)


SIGMOID_EXPERTS = {
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "moe_intermediate_size": 32,
    "routed_scaling_factor": 2.5,
    "first_k_dense_replace": 1,
}


def glm4_moe(**changes: object) -> PretrainedConfig:
    kind = {"num_hidden_layers": 3, "attention_bias": True, "use_qk_norm": True, "num_nextn_predict_layers": 0}
    return Glm4MoeConfig(**SIZES | SIGMOID_EXPERTS | kind | changes)


YARN = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 4.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 0.7,
}
LATENTS = {"kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 20}


WITH_LATENTS = (
    {key: size for key, size in SIZES.items() if key not in ("head_dim", "num_key_value_heads")}
    | SIGMOID_EXPERTS
    | LATENTS
    | {"num_hidden_layers": 3, "q_lora_rank": 48, "num_nextn_predict_layers": 0}
    | {"topk_method": "noaux_tc", "scoring_func": "sigmoid"}
)


def deepseek_v3(**changes: object) -> PretrainedConfig:
    changes.pop("head_dim", None)  # it has two kinds of channels
    return DeepseekV3Config(**WITH_LATENTS | {"rope_parameters": dict(YARN)} | changes)


def glm4_moe_lite(**changes: object) -> PretrainedConfig:
    """With the epsilon that the latents' norms have in transformers."""
    return Glm4MoeLiteConfig(**WITH_LATENTS | {"num_key_value_heads": 4, "rms_norm_eps": 1e-6} | changes)


FAMILIES = {
    "nemotron_h": nemotron_h,
    "qwen3": qwen3,
    "qwen3_moe": qwen3_moe,
    "qwen3_next": qwen3_next,
    "qwen2": qwen2,
    "llama": llama,
    "glm4_moe": glm4_moe,
    "deepseek_v3": deepseek_v3,
}


def save(config: PretrainedConfig, folder: Path) -> PreTrainedModel:
    """A model, saved to `folder`, none of whose weights has a special value (norms one, biases zero)."""
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            tensor.add_(torch.randn_like(tensor) * (0.1 if tensor.dim() == 1 else 0.05))
            if name.endswith("e_score_correction_bias"):
                tensor.mul_(5.0)
    model.save_pretrained(folder)
    return model
