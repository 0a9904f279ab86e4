"""What DeepSeek-V3 and GLM-4.5 share: Llama whose first layers have an MLP, and the others experts."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from cascade_rl.engine.models.families import sigmoid_experts
from cascade_rl.engine.models.families.llama import Llama
from cascade_rl.engine.models.hf_config import HfConfig, read, require
from cascade_rl.engine.models.name_map import NameMap, Parameter


class DeepseekMoe(Llama):
    def feed_forward(self, hf: HfConfig, hf_layer: int) -> str:
        return "-" if hf_layer < read(hf, "first_k_dense_replace") else "E"

    def require_supported(self, hf: HfConfig) -> None:
        super().require_supported(hf)
        require(hf, moe_layer_freq=1)
        sigmoid_experts.require_supported(hf)

    def transformer_config(self, hf: HfConfig) -> dict[str, Any]:
        return super().transformer_config(hf) | sigmoid_experts.transformer_config(hf, _shared_width(hf))

    def experts(self, hf: HfConfig) -> int:
        return read(hf, "n_routed_experts")

    def name_map(self, hf: HfConfig) -> NameMap:
        """Heads that predict further tokens (MTP) are the layers after the last."""
        last = read(hf, "num_hidden_layers")
        heads = range(last, last + hf.get("num_nextn_predict_layers", 0))
        return replace(super().name_map(hf), beside=tuple(f"model.layers.{head}." for head in heads))

    def layer(self, hf: HfConfig, layer: int, symbol: str) -> Iterator[Parameter]:
        if symbol != "E":
            return super().layer(hf, layer, symbol)
        prefix = f"model.layers.{layer // 2}"
        norm = f"{prefix}.post_attention_layernorm.weight"
        return sigmoid_experts.layer(hf, layer, f"{prefix}.mlp", norm, shared_width=_shared_width(hf), gated=True)


def _shared_width(hf: HfConfig) -> int:
    """Of all shared experts, which are one MLP."""
    return read(hf, "n_shared_experts") * read(hf, "moe_intermediate_size")
