"""DeepSeek-V3, R1 and V3.1, Kimi-K2, Moonlight, GLM-4.7-Flash: attention by latents (MLA), and sigmoid experts.

Sources: arXiv 2405.04434 (section 2.1), arXiv 2412.19437, modeling_deepseek_v3.py of transformers. The norms of the
latents have the epsilon of config.json, as in Megatron and vLLM. Those of transformers have 1e-6, whatever config.json
says: that is DeepSeek's, while GLM-4.7-Flash has 1e-5.
"""

from typing import Any

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.models.families import layers
from cascade_rl.engine.models.families.deepseek_moe import DeepseekMoe
from cascade_rl.engine.models.hf_config import HfConfig, read, require, rotary_base, rotary_kind, rotary_settings


class DeepseekV3(DeepseekMoe):
    architecture = "DeepseekV3ForCausalLM"
    attention = "+"
    told_to_vllm: tuple[str, ...] = ("topk_method", "scoring_func")  # else its experts have softmax, and no bias

    def require_supported(self, hf: HfConfig) -> None:
        super().require_supported(hf)
        require(hf, rope_interleave=True)
        for key in self.told_to_vllm:
            read(hf, key)

    def require_rotary(self, hf: HfConfig) -> None:
        _positions(hf)

    def transformer_config(self, hf: HfConfig) -> dict[str, Any]:
        return (
            super().transformer_config(hf)
            | _positions(hf)
            | {
                "multi_latent_attention": True,
                "q_lora_rank": hf.get("q_lora_rank"),
                "kv_lora_rank": read(hf, "kv_lora_rank"),
                "qk_head_dim": read(hf, "qk_nope_head_dim"),
                "qk_pos_emb_head_dim": read(hf, "qk_rope_head_dim"),
                "v_head_dim": read(hf, "v_head_dim"),
                "num_query_groups": read(hf, "num_attention_heads"),
                "kv_channels": read(hf, "v_head_dim"),
                "qk_layernorm": True,
            }
        )

    def attention_rules(self, hf: HfConfig, prefix: str) -> layers.Rules:
        return layers.latent_attention(
            f"{prefix}.self_attn",
            f"{prefix}.input_layernorm.weight",
            hidden=read(hf, "hidden_size"),
            heads=read(hf, "num_attention_heads"),
            query_latent=hf.get("q_lora_rank"),
            latent=read(hf, "kv_lora_rank"),
            plain=read(hf, "qk_nope_head_dim"),
            rotary=read(hf, "qk_rope_head_dim"),
            value=read(hf, "v_head_dim"),
        )


class Glm4MoeLite(DeepseekV3):
    """GLM-4.7-Flash."""

    architecture = "Glm4MoeLiteForCausalLM"
    told_to_vllm = ()

    def feed_forward(self, hf: HfConfig, hf_layer: int) -> str:
        """transformers 5 writes a list in place of the number of dense layers."""
        kinds = hf.get("mlp_layer_types")
        return {"dense": "-", "sparse": "E"}[kinds[hf_layer]] if kinds else super().feed_forward(hf, hf_layer)


def _positions(hf: HfConfig) -> dict[str, Any]:
    """MLATransformerConfig fields. Raises UserError for rotary embeddings that it does not have."""
    rope, kind = rotary_settings(hf), rotary_kind(hf)
    require(rope | {"architectures": hf["architectures"]}, partial_rotary_factor=1.0, attention_factor=None)
    base = {"rotary_base": rotary_base(hf), "rotary_percent": 1.0}
    if kind == "default":
        return base | {"rope_type": "rope"}
    if kind != "yarn":
        raise UserError(
            f"rotary embeddings of latent attention: expected rope_type = 'default' or 'yarn', found {kind!r} in "
            "config.json. Another kind is not implemented"
        )
    return base | {
        "rope_type": "yarn",
        "rotary_scaling_factor": read(rope, "factor"),
        "original_max_position_embeddings": read(rope, "original_max_position_embeddings"),
        "beta_fast": rope.get("beta_fast", 32.0),
        "beta_slow": rope.get("beta_slow", 1.0),
        "mscale": read(rope, "mscale"),
        "mscale_all_dim": read(rope, "mscale_all_dim"),
    }
