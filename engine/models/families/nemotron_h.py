"""Nemotron-H and Nemotron-3-Nano: Mamba-2, attention without positions, sigmoid-routed relu2 experts.

Sources: the report of Nemotron 3 Nano (arXiv 2512.20848), modeling_nemotron_h.py of transformers, and, for Megatron's
names, nemotron_h_bridge.py of NVIDIA-NeMo/Megatron-Bridge. transformers 5 clamps dt from below at `time_step_min`,
Megatron does not; the difference shows only where softplus(dt) < time_step_min.
"""

from collections.abc import Iterator
from typing import Any

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.models.families import layers, sigmoid_experts
from cascade_rl.engine.models.hf_config import HfConfig, head_width, read, require
from cascade_rl.engine.models.name_map import NameMap, Parameter

SYMBOLS = {
    "linear_attention": "M",
    "mamba": "M",
    "full_attention": "*",
    "attention": "*",
    "moe": "E",
    "mlp": "-",
}
"""Names in `layers_block_type`, of transformers 5.19 and of earlier versions."""


class NemotronH:
    architecture = "NemotronHForCausalLM"

    def pattern(self, hf: HfConfig) -> str:
        """One symbol for each HF layer. Checkpoints on the hub have the string, transformers 5 writes a list."""
        if "hybrid_override_pattern" in hf:
            return hf["hybrid_override_pattern"]
        kinds = read(hf, "layers_block_type")
        if unknown := set(kinds) - set(SYMBOLS):
            raise UserError(f"layers_block_type holds {sorted(unknown)}; known are {sorted(SYMBOLS)}")
        return "".join(SYMBOLS[kind] for kind in kinds)

    def transformer_config(self, hf: HfConfig) -> dict[str, Any]:
        _require_supported(hf)
        pattern = self.pattern(hf)
        config = {
            "num_layers": len(pattern),
            "hidden_size": read(hf, "hidden_size"),
            "ffn_hidden_size": read(hf, "intermediate_size"),
            "num_attention_heads": read(hf, "num_attention_heads"),
            "num_query_groups": read(hf, "num_key_value_heads"),
            "kv_channels": head_width(hf),
            "gated_linear_unit": False,
            "activation_func": "relu2",
            "layernorm_epsilon": read(hf, "layer_norm_epsilon"),
            "init_method_std": hf.get("initializer_range", 0.02),
            "fp32_residual_connection": hf.get("residual_in_fp32", False),
            "mamba_num_heads": read(hf, "mamba_num_heads"),
            "mamba_head_dim": read(hf, "mamba_head_dim"),
            "mamba_num_groups": read(hf, "n_groups"),
            "mamba_state_dim": read(hf, "ssm_state_size"),
        }
        return config | sigmoid_experts.transformer_config(hf, _shared_width(hf)) if "E" in pattern else config

    def model_kwargs(self, hf: HfConfig) -> dict[str, Any]:
        return {
            "position_embedding_type": "none",
            "max_sequence_length": read(hf, "max_position_embeddings"),
            "share_embeddings_and_output_weights": hf.get("tie_word_embeddings", False),
        }

    def name_map(self, hf: HfConfig) -> NameMap:
        pattern = self.pattern(hf)
        return layers.language_model(
            [list(_layer(hf, n, symbol)) for n, symbol in enumerate(pattern)],
            embedding="backbone.embeddings.weight",
            norm="backbone.norm_f.weight",
            head="lm_head.weight",
            vocabulary_size=read(hf, "vocab_size"),
            hidden=read(hf, "hidden_size"),
            experts=read(hf, "n_routed_experts") if "E" in pattern else 0,
            tied=hf.get("tie_word_embeddings", False),
        )


def _require_supported(hf: HfConfig) -> None:
    """Raises UserError for settings of an HF config that Megatron's Mamba mixer or router does not have."""
    require(hf, use_bias=False, mlp_bias=False, attention_bias=False, mamba_proj_bias=False, use_conv_bias=True)
    require(hf, conv_kernel=4, mamba_hidden_act="silu", mlp_hidden_act="relu2", layer_norm_epsilon=1e-5)
    require(hf, moe_latent_size=None, sliding_window=None, num_nextn_predict_layers=0)
    sigmoid_experts.require_supported(hf)


def _layer(hf: HfConfig, layer: int, symbol: str) -> Iterator[Parameter]:
    mixer, norm = f"backbone.layers.{layer}.mixer", f"backbone.layers.{layer}.norm.weight"
    hidden = read(hf, "hidden_size")
    if symbol == "E":
        yield from sigmoid_experts.layer(hf, layer, mixer, norm, shared_width=_shared_width(hf), gated=False)
    elif symbol == "M":
        yield from layers.in_layer(layer, _mamba_rules(hf, mixer, norm))
    elif symbol == "*":
        heads, groups = read(hf, "num_attention_heads"), read(hf, "num_key_value_heads")
        rules = layers.attention(mixer, norm, hidden=hidden, heads=heads, groups=groups, width=head_width(hf))
        yield from layers.in_layer(layer, rules)
    elif symbol == "-":
        rules = layers.mlp(mixer, norm, hidden=hidden, width=read(hf, "intermediate_size"), gated=False)
        yield from layers.in_layer(layer, rules)
    else:
        raise UserError(f"hybrid_override_pattern is made of M, *, E and -; found {symbol!r} at layer {layer}")


def _shared_width(hf: HfConfig) -> int:
    return read(hf, "moe_shared_expert_intermediate_size")


def _mamba_rules(hf: HfConfig, mixer: str, norm: str) -> layers.Rules:
    return layers.mamba(
        mixer,
        norm,
        hidden=read(hf, "hidden_size"),
        heads=read(hf, "mamba_num_heads"),
        width=read(hf, "mamba_head_dim"),
        groups=read(hf, "n_groups"),
        state=read(hf, "ssm_state_size"),
        kernel=read(hf, "conv_kernel"),
    )
