"""GLM-4.5, 4.6 and 4.7: grouped-query attention with biases, of which half of the channels turn, and sigmoid experts.

Sources: the report of GLM-4.5 (arXiv 2508.06471) and modeling_glm4_moe.py of transformers. GLM-4.5 has norms of queries
and keys, GLM-4.5-Air has none.
"""

from typing import Any

from cascade_rl.engine.models.families import layers
from cascade_rl.engine.models.families.deepseek_moe import DeepseekMoe
from cascade_rl.engine.models.hf_config import HfConfig, head_width, read, rotary_share


class Glm4Moe(DeepseekMoe):
    architecture = "Glm4MoeForCausalLM"

    def require_supported(self, hf: HfConfig) -> None:
        super().require_supported(hf | {"attention_bias": False})  # Llama's would be one of the output too

    def transformer_config(self, hf: HfConfig) -> dict[str, Any]:
        return super().transformer_config(hf) | {
            "add_qkv_bias": hf.get("attention_bias", False),
            "qk_layernorm": hf.get("use_qk_norm", False),
        }

    def model_kwargs(self, hf: HfConfig) -> dict[str, Any]:
        return super().model_kwargs(hf) | {"rotary_percent": rotary_share(hf, otherwise=0.5)}

    def attention_rules(self, hf: HfConfig, prefix: str) -> layers.Rules:
        width, heads, groups = head_width(hf), read(hf, "num_attention_heads"), read(hf, "num_key_value_heads")
        rules, attention = super().attention_rules(hf, prefix), f"{prefix}.self_attn"
        if hf.get("attention_bias", False):
            rules |= layers.query_key_value_biases(attention, heads=heads, groups=groups, width=width)
        if hf.get("use_qk_norm", False):
            rules |= layers.query_key_norms(attention, width)
        return rules
