"""Llama, and what the Qwen3 families share with it: a HybridModel that alternates attention and MLP."""

from collections.abc import Iterator
from typing import Any

from cascade_rl.engine.models.families import layers
from cascade_rl.engine.models.hf_config import HfConfig, head_width, read, require, rotary_base, rotary_scaling
from cascade_rl.engine.models.name_map import NameMap, Parameter


class Llama:
    """Llama 2 to 3.3, SmolLM2."""

    architecture = "LlamaForCausalLM"
    attention = "*"
    attention_layer = staticmethod(layers.attention)

    def pattern(self, hf: HfConfig) -> str:
        """HF layer n is layers 2n (attention) and 2n + 1 (MLP or experts) of HybridModel."""
        return "".join(self.mixer(hf, n) + self.feed_forward(hf, n) for n in range(read(hf, "num_hidden_layers")))

    def mixer(self, hf: HfConfig, hf_layer: int) -> str:
        """Which kind of attention this HF layer has."""
        return self.attention

    def feed_forward(self, hf: HfConfig, hf_layer: int) -> str:
        """Which kind of layer follows the attention of this HF layer."""
        return "-"

    def require_supported(self, hf: HfConfig) -> None:
        """Raises UserError for a setting that is not implemented."""
        require(hf, hidden_act="silu", attention_bias=False, mlp_bias=False)
        self.require_rotary(hf)

    def require_rotary(self, hf: HfConfig) -> None:
        """Raises UserError for rotary embeddings that are not implemented."""
        rotary_scaling(hf)

    def transformer_config(self, hf: HfConfig) -> dict[str, Any]:
        self.require_supported(hf)
        return {
            "num_layers": len(self.pattern(hf)),
            "hidden_size": read(hf, "hidden_size"),
            "ffn_hidden_size": read(hf, "intermediate_size"),
            "num_attention_heads": read(hf, "num_attention_heads"),
            "num_query_groups": read(hf, "num_key_value_heads"),
            "kv_channels": head_width(hf),
            "gated_linear_unit": True,
            "activation_func": "silu",
            "layernorm_epsilon": read(hf, "rms_norm_eps"),
            "init_method_std": hf.get("initializer_range", 0.02),
        }

    def model_kwargs(self, hf: HfConfig) -> dict[str, Any]:
        return {
            "position_embedding_type": "rope",
            "rotary_base": rotary_base(hf),
            "max_sequence_length": read(hf, "max_position_embeddings"),
            "share_embeddings_and_output_weights": hf.get("tie_word_embeddings", False),
        }

    def name_map(self, hf: HfConfig) -> NameMap:
        pattern = self.pattern(hf)
        return layers.language_model(
            [list(self.layer(hf, n, symbol)) for n, symbol in enumerate(pattern)],
            embedding="model.embed_tokens.weight",
            norm="model.norm.weight",
            head="lm_head.weight",
            vocabulary_size=read(hf, "vocab_size"),
            hidden=read(hf, "hidden_size"),
            experts=self.experts(hf),
            tied=hf.get("tie_word_embeddings", False),
        )

    def experts(self, hf: HfConfig) -> int:
        return 0

    def attention_rules(self, hf: HfConfig, prefix: str) -> layers.Rules:
        return self.attention_layer(
            f"{prefix}.self_attn",
            f"{prefix}.input_layernorm.weight",
            hidden=read(hf, "hidden_size"),
            heads=read(hf, "num_attention_heads"),
            groups=read(hf, "num_key_value_heads"),
            width=head_width(hf),
        )

    def layer(self, hf: HfConfig, layer: int, symbol: str) -> Iterator[Parameter]:
        prefix = f"model.layers.{layer // 2}"
        if symbol == self.attention:
            return layers.in_layer(layer, self.attention_rules(hf, prefix))
        rules = layers.mlp(
            f"{prefix}.mlp",
            f"{prefix}.post_attention_layernorm.weight",
            hidden=read(hf, "hidden_size"),
            width=read(hf, "intermediate_size"),
            gated=True,
        )
        return layers.in_layer(layer, rules)
