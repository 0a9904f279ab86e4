"""Qwen3 dense: Llama with per-head norms of queries and keys."""

from typing import Any

from cascade_rl.engine.models.families import layers
from cascade_rl.engine.models.families.llama import Llama
from cascade_rl.engine.models.hf_config import HfConfig, head_width, require


class Qwen3(Llama):
    architecture = "Qwen3ForCausalLM"

    def require_supported(self, hf: HfConfig) -> None:
        super().require_supported(hf)
        require(hf, use_sliding_window=False)

    def transformer_config(self, hf: HfConfig) -> dict[str, Any]:
        return super().transformer_config(hf) | {"qk_layernorm": True}

    def attention_rules(self, hf: HfConfig, prefix: str) -> layers.Rules:
        norms = layers.query_key_norms(f"{prefix}.self_attn", head_width(hf))
        return super().attention_rules(hf, prefix) | norms
