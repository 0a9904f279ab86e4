"""Qwen3-MoE: Qwen3 whose MLPs are softmax-routed gated experts."""

from collections.abc import Iterator
from typing import Any

from cascade_rl.engine.models.families import layers
from cascade_rl.engine.models.families.qwen3 import Qwen3
from cascade_rl.engine.models.hf_config import HfConfig, read
from cascade_rl.engine.models.name_map import Parameter


class Qwen3Moe(Qwen3):
    architecture = "Qwen3MoeForCausalLM"

    def feed_forward(self, hf: HfConfig, hf_layer: int) -> str:
        sparse = (hf_layer + 1) % hf.get("decoder_sparse_step", 1) == 0
        return "E" if sparse and hf_layer not in (hf.get("mlp_only_layers") or []) else "-"

    def transformer_config(self, hf: HfConfig) -> dict[str, Any]:
        return super().transformer_config(hf) | {
            "num_moe_experts": self.experts(hf),
            "moe_ffn_hidden_size": read(hf, "moe_intermediate_size"),
            "moe_router_topk": read(hf, "num_experts_per_tok"),
            "moe_router_score_function": "softmax",
            # renormalised top-k probabilities are the softmax of the top-k logits
            "moe_router_pre_softmax": not read(hf, "norm_topk_prob"),
        }

    def experts(self, hf: HfConfig) -> int:
        return read(hf, "num_experts", "num_local_experts")

    def layer(self, hf: HfConfig, layer: int, symbol: str) -> Iterator[Parameter]:
        return self._expert_layer(hf, layer) if symbol == "E" else super().layer(hf, layer, symbol)

    def _expert_layer(self, hf: HfConfig, layer: int) -> Iterator[Parameter]:
        prefix, hidden, experts = f"model.layers.{layer // 2}", read(hf, "hidden_size"), self.experts(hf)
        mlp, norm = f"{prefix}.mlp", f"{prefix}.post_attention_layernorm.weight"
        yield from layers.in_layer(layer, layers.router(mlp, norm, hidden=hidden, experts=experts))
        width = read(hf, "moe_intermediate_size")
        yield from layers.routed_experts(layer, mlp, experts=experts, hidden=hidden, width=width, gated=True)
