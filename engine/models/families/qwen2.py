"""Qwen2 and Qwen2.5 dense: Llama with biases of queries, keys and values."""

from typing import Any

from cascade_rl.engine.models.families import layers
from cascade_rl.engine.models.families.llama import Llama
from cascade_rl.engine.models.hf_config import HfConfig, head_width, read, require


class Qwen2(Llama):
    architecture = "Qwen2ForCausalLM"

    def require_supported(self, hf: HfConfig) -> None:
        super().require_supported(hf)
        # vLLM's model has no heads of another width
        require(hf, use_sliding_window=False, head_dim=read(hf, "hidden_size") // read(hf, "num_attention_heads"))

    def transformer_config(self, hf: HfConfig) -> dict[str, Any]:
        return super().transformer_config(hf) | {"add_qkv_bias": True}

    def attention_rules(self, hf: HfConfig, prefix: str) -> layers.Rules:
        heads, groups = read(hf, "num_attention_heads"), read(hf, "num_key_value_heads")
        biases = layers.query_key_value_biases(f"{prefix}.self_attn", heads=heads, groups=groups, width=head_width(hf))
        return super().attention_rules(hf, prefix) | biases
