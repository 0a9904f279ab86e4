"""Qwen3-Next: three of four layers are gated delta nets, the others attention with a gate; softmax-routed experts.

Sources: modeling_qwen3_next.py of transformers; Gated DeltaNet, arXiv 2412.06464. The weights of its norms are added to
one, but for the norm inside a delta net.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from cascade_rl.engine.models.families import layers
from cascade_rl.engine.models.families.qwen3_moe import Qwen3Moe
from cascade_rl.engine.models.hf_config import HfConfig, read, rotary_share
from cascade_rl.engine.models.name_map import NameMap, Parameter, Part, replicated

MIXERS = {"linear_attention": "G", "full_attention": "*"}


class Qwen3Next(Qwen3Moe):
    architecture = "Qwen3NextForCausalLM"
    attention_layer = staticmethod(layers.gated_attention)

    def mixer(self, hf: HfConfig, hf_layer: int) -> str:
        """Checkpoints on the hub have an interval, transformers 5 writes a list."""
        if kinds := hf.get("layer_types"):
            return MIXERS[kinds[hf_layer]]
        return "*" if (hf_layer + 1) % read(hf, "full_attention_interval") == 0 else "G"

    def transformer_config(self, hf: HfConfig) -> dict[str, Any]:
        return super().transformer_config(hf) | {
            "layernorm_zero_centered_gamma": True,
            "attention_output_gate": True,
            "linear_num_key_heads": read(hf, "linear_num_key_heads"),
            "linear_num_value_heads": read(hf, "linear_num_value_heads"),
            "linear_key_head_dim": read(hf, "linear_key_head_dim"),
            "linear_value_head_dim": read(hf, "linear_value_head_dim"),
            "linear_conv_kernel_dim": read(hf, "linear_conv_kernel_dim"),
            "moe_shared_expert_intermediate_size": read(hf, "shared_expert_intermediate_size"),
            "moe_shared_expert_gate": True,
        }

    def model_kwargs(self, hf: HfConfig) -> dict[str, Any]:
        return super().model_kwargs(hf) | {"rotary_percent": rotary_share(hf, otherwise=0.25)}

    def name_map(self, hf: HfConfig) -> NameMap:
        return replace(super().name_map(hf), beside=("mtp.",))

    def layer(self, hf: HfConfig, layer: int, symbol: str) -> Iterator[Parameter]:
        prefix = f"model.layers.{layer // 2}"
        if symbol == "G":
            yield from layers.in_layer(layer, self.delta_net_rules(hf, prefix))
            return
        yield from super().layer(hf, layer, symbol)
        if symbol == "E":
            yield from layers.in_layer(layer, _shared_expert(hf, f"{prefix}.mlp"))

    def delta_net_rules(self, hf: HfConfig, prefix: str) -> layers.Rules:
        return layers.gated_delta_net(
            f"{prefix}.linear_attn",
            f"{prefix}.input_layernorm.weight",
            self.projected(hf, f"{prefix}.linear_attn"),
            hidden=read(hf, "hidden_size"),
            heads=read(hf, "linear_num_key_heads"),
            width=read(hf, "linear_key_head_dim"),
            value_heads=read(hf, "linear_num_value_heads"),
            value_width=read(hf, "linear_value_head_dim"),
            kernel=read(hf, "linear_conv_kernel_dim"),
        )

    def projected(self, hf: HfConfig, prefix: str) -> tuple[Part, ...]:
        """Two linears. Each has, for one key head after the other, what belongs to it."""
        heads, width = read(hf, "linear_num_key_heads"), read(hf, "linear_key_head_dim")
        values = read(hf, "linear_num_value_heads") // heads
        value = values * read(hf, "linear_value_head_dim")
        return (
            *_in_turn(f"{prefix}.in_proj_qkvz.weight", heads, (width, width, value, value)),
            *_in_turn(f"{prefix}.in_proj_ba.weight", heads, (values, values)),
        )


def _in_turn(name: str, heads: int, widths: tuple[int, ...]) -> Iterator[Part]:
    """Parts of a tensor that has a piece of each of them for one key head after the other."""
    for position, width in enumerate(widths):
        yield Part(name, heads, width, sum(widths[:position]), layers.KEY_HEADS, stride=sum(widths))


def _shared_expert(hf: HfConfig, prefix: str) -> layers.Rules:
    hidden, width = read(hf, "hidden_size"), read(hf, "shared_expert_intermediate_size")
    shared, name = "mlp.shared_experts", f"{prefix}.shared_expert"
    gate = {f"{shared}.gate_weight": replicated(f"{name}_gate.weight", 1, hidden)}
    return layers.feed_forward(shared, name, hidden=hidden, width=width, gated=True) | gate
