"""One table for both backends: the provider's class ends up in every place where Megatron's own has TE's."""

import ast
import inspect
from pathlib import Path
from typing import Any

import megatron.core
import pytest
import torch
from megatron.core.extensions import transformer_engine
from megatron.core.models.hybrid.hybrid_layer_specs import hybrid_stack_spec as megatrons
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.transformer_config import TransformerConfig

from cascade_rl.engine.backend.torch_layers import TorchSpecProvider
from cascade_rl.engine.models.layer_spec import factors, hybrid_stack_spec

LAYERS = ("mamba_layer", "gdn_layer", "attention_layer", "mla_layer", "mlp_layer", "moe_layer")
# which class of Megatron's own table plays which role of a provider
ROLES = {
    "TELayerNormColumnParallelLinear": "column_parallel_layer_norm_linear",
    "TEColumnParallelLinear": "column_parallel_linear",
    "TELinear": "linear",
    "TERowParallelLinear": "row_parallel_linear",
    "TENorm": "layer_norm",
    "TEDotProductAttention": "core_attention",
}


# of latents: Megatron asks Transformer Engine itself for a linear with a norm in it, our layer names both
OURS_ALONE = {
    "mla_layer.self_attention": "LatentAttention",
    "mla_layer.self_attention.q_layernorm": "layer_norm",
    "mla_layer.self_attention.kv_layernorm": "layer_norm",
    "gdn_layer.self_attention": "DeltaNet",
    "gdn_layer.self_attention.out_norm": "factors of layer_norm",
}


class Roles:
    """A provider that gives each role a class of that name."""

    def __getattr__(self, role: str) -> Any:
        return lambda *_, **__: type(role, (), {})

    def fuse_layernorm_and_linear(self) -> bool:
        return True

    def activation_func(self) -> None:
        """What TE's provider has where TE is not installed."""

    def grouped_mlp_modules(self, _: bool) -> Any:
        return type("grouped_mlp_modules", (), {})


def placed(spec: Any, path: str = "") -> dict[str, str]:
    """The name of every class that a spec names, by its path; nested specs, partials and submodules opened."""
    if hasattr(spec, "func"):
        inside = placed(spec.keywords.get("submodules"), path)
        return {path: getattr(spec.func, "__qualname__", str(spec.func))} | inside
    if hasattr(spec, "module") and hasattr(spec, "submodules"):
        return {path: spec.module.__name__} | placed(spec.submodules, path)
    if hasattr(spec, "__dataclass_fields__"):
        found: dict[str, str] = {}
        for name in spec.__dataclass_fields__:
            found |= placed(getattr(spec, name), f"{path}.{name}")
        return found
    return {} if spec is None else {path: name_of(spec)}


def name_of(cls: Any) -> str:
    """Without Transformer Engine some of Megatron's classes for it are mocks, which have no name."""
    return getattr(cls, "__name__", str(cls))


def layers_of(spec: Any) -> dict[str, str]:
    return {
        place: name
        for layer in LAYERS
        for place, name in placed(getattr(spec.submodules, layer), layer).items()
        if name != "IdentityOp"
    }


def test_the_table_is_megatrons_own_with_a_providers_classes() -> None:
    ours, theirs = layers_of(hybrid_stack_spec(Roles(), qk_layernorm=False)), layers_of(megatrons)  # type: ignore[arg-type]
    experts = "moe_layer.mlp.experts"
    assert ours.pop(experts) == "grouped_mlp_modules"
    roles = {name_of(getattr(transformer_engine, name)): role for name, role in ROLES.items()}
    theirs |= OURS_ALONE
    theirs = {place: roles.get(name, name) for place, name in theirs.items() if not place.startswith(experts)}
    assert len(theirs) > 15
    assert ours == theirs


def test_the_norm_in_a_delta_net_has_factors_whatever_the_others_have() -> None:
    provider = TorchSpecProvider()
    config = TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1, layernorm_zero_centered_gamma=True)
    norm = factors(provider.layer_norm(rms_norm=True))(config=config, hidden_size=4, eps=1e-6)
    assert torch.equal(norm.weight, torch.ones(4))
    assert not norm.zero_centered
    assert config.layernorm_zero_centered_gamma


@pytest.mark.parametrize(("qk_layernorm", "expected"), [(True, "layer_norm"), (False, IdentityOp.__name__)])
def test_query_and_key_norms_are_the_familys_choice(qk_layernorm: bool, expected: str) -> None:
    spec = hybrid_stack_spec(Roles(), qk_layernorm=qk_layernorm)  # type: ignore[arg-type]
    attention = placed(spec.submodules.attention_layer)
    norms = {attention[f".self_attention.{name}_layernorm"] for name in ("q", "k")}
    assert norms == {expected}


def te_signature(name: str) -> set[str]:
    """Constructor arguments of a class of Megatron's Transformer Engine extension, which needs no import."""
    source = Path(megatron.core.__path__[0], "extensions", "transformer_engine.py").read_text()
    [cls] = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef) and node.name == name]
    [init] = [node for node in cls.body if isinstance(node, ast.FunctionDef) and node.name in ("__init__", "__new__")]
    return {argument.arg for argument in init.args.args + init.args.kwonlyargs} - {"self", "cls"}


def own_signature(cls: type) -> tuple[set[str], bool]:
    """Named arguments over all constructors that take part, and whether any others are taken as well."""
    parameters = inspect.signature(cls.__init__).parameters.values()  # type: ignore[misc]
    named = {p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)} - {"self"}
    return named, any(p.kind == p.VAR_KEYWORD for p in parameters)


def twins() -> dict[str, type]:
    provider = TorchSpecProvider()
    experts = provider.grouped_mlp_modules(True).keywords["submodules"]
    return {
        "TENorm": provider.layer_norm(rms_norm=True),
        "TELayerNormColumnParallelLinear": provider.column_parallel_layer_norm_linear(),
        "TELinear": provider.linear(),
        "TEDotProductAttention": provider.core_attention(),
        "TEColumnParallelGroupedLinear": experts.linear_fc1,
        "TERowParallelGroupedLinear": experts.linear_fc2,
    }


@pytest.mark.parametrize("name", twins())
def test_a_twin_is_built_with_the_arguments_of_its_model(name: str) -> None:
    named, others = own_signature(twins()[name])
    assert named <= te_signature(name)
    assert others or named == te_signature(name)
