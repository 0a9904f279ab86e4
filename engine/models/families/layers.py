"""Megatron's side of the map: the parameters of each kind of HybridModel layer, as rules over HF tensors.

The families name the tensors inside a block alike; they differ in prefixes and norms. Norms of
attention, Mamba and dense MLP layers are fused into the linear after them (`layer_norm_weight`), that of an
expert layer is not.
"""

from collections.abc import Iterator, Mapping
from typing import Literal

from cascade_rl.engine.models.name_map import (
    NameMap,
    Parameter,
    Part,
    Rule,
    column,
    interleaved,
    replicated,
    row,
    vocabulary,
)

Rules = dict[str, Rule]

KEY_HEADS, VALUE_HEADS = "key heads of the delta net", "value heads of the delta net"


def attention(prefix: str, norm: str, *, hidden: int, heads: int, groups: int, width: int) -> Rules:
    """A `*` layer: `heads` query heads that share `groups` key/value heads of `width` channels."""
    parts = _query_key_value(prefix, "weight", heads, groups, width)
    return {
        "self_attention.linear_qkv.layer_norm_weight": replicated(norm, hidden),
        "self_attention.linear_qkv.weight": interleaved(*parts, units=groups, others=(hidden,)),
        "self_attention.linear_proj.weight": row(
            Part(f"{prefix}.o_proj.weight", heads, width, pieces="query heads"), hidden
        ),
    }


def gated_attention(prefix: str, norm: str, *, hidden: int, heads: int, groups: int, width: int) -> Rules:
    """A `*` layer whose output has a gate. HF's q_proj has, for each head, its query and its gate."""
    _, key, value = _query_key_value(prefix, "weight", heads, groups, width)
    query, gate = (
        Part(f"{prefix}.q_proj.weight", heads, width, start, "query heads", 2 * width) for start in (0, width)
    )
    return attention(prefix, norm, hidden=hidden, heads=heads, groups=groups, width=width) | {
        "self_attention.linear_qkv.weight": interleaved(query, gate, key, value, units=groups, others=(hidden,)),
    }


def query_key_value_biases(prefix: str, *, heads: int, groups: int, width: int) -> Rules:
    """Of the linear of `attention`."""
    parts = _query_key_value(prefix, "bias", heads, groups, width)
    return {"self_attention.linear_qkv.bias": interleaved(*parts, units=groups, others=())}


def _query_key_value(prefix: str, kind: str, heads: int, groups: int, width: int) -> Iterator[Part]:
    yield Part(f"{prefix}.q_proj.{kind}", heads, width, pieces="query heads")
    for name in "kv":
        yield Part(f"{prefix}.{name}_proj.{kind}", groups, width, pieces="key/value heads")


def query_key_norms(prefix: str, width: int) -> Rules:
    """Per-head norms of queries and keys, in addition to the norm of `attention`."""
    return {
        "self_attention.q_layernorm.weight": replicated(f"{prefix}.q_norm.weight", width),
        "self_attention.k_layernorm.weight": replicated(f"{prefix}.k_norm.weight", width),
    }


def latent_attention(
    prefix: str,
    norm: str,
    *,
    hidden: int,
    heads: int,
    query_latent: int | None,
    latent: int,
    plain: int,
    rotary: int,
    value: int,
) -> Rules:
    """A `+` layer. Queries, and keys with values, come from latents that all tensor parallel ranks have.

    A query or key has `plain` channels, and `rotary` ones that turn; those of the key are the same for all heads.
    """
    down, up = f"{prefix}.kv_a_proj_with_mqa.weight", f"{prefix}.kv_b_proj.weight"

    def per_head(name: str, width: int, inputs: int) -> Rule:
        return column(Part(name, heads, width, pieces="heads"), others=(inputs,))

    def query(name: str, inputs: int) -> Rule:
        return per_head(f"{prefix}.{name}.weight", plain + rotary, inputs)

    if query_latent is None:
        queries = {"self_attention.linear_q_proj.weight": query("q_proj", hidden)}
    else:
        queries = {
            "self_attention.linear_q_down_proj.weight": replicated(f"{prefix}.q_a_proj.weight", query_latent, hidden),
            "self_attention.q_layernorm.weight": replicated(f"{prefix}.q_a_layernorm.weight", query_latent),
            "self_attention.linear_q_up_proj.weight": query("q_b_proj", query_latent),
        }
    return {
        "input_layernorm.weight": replicated(norm, hidden),
        **queries,
        "self_attention.linear_kv_down_proj.weight": replicated(down, latent + rotary, hidden),
        "self_attention.kv_layernorm.weight": replicated(f"{prefix}.kv_a_layernorm.weight", latent),
        "self_attention.linear_kv_up_proj.weight": per_head(up, plain + value, latent),
        "self_attention.linear_proj.weight": row(Part(f"{prefix}.o_proj.weight", heads, value, pieces="heads"), hidden),
    }


def mamba(
    prefix: str, norm: str, *, hidden: int, heads: int, width: int, groups: int, state: int, kernel: int
) -> Rules:
    """An `M` layer. HF's in_proj stacks z, x, B, C, dt and its conv1d x, B, C; each is split by itself."""
    inner, states = heads * width, groups * state
    mamba_heads, state_groups = "Mamba heads", "state groups"

    def per_head(name: str) -> Rule:
        return column(Part(f"{prefix}.{name}", heads, pieces=mamba_heads))

    def stacked(name: str, first: int, *others: int) -> tuple[Part, ...]:
        x, b, c = first, first + inner, first + inner + states
        grouped = (Part(name, groups, state, start, state_groups) for start in (b, c))
        return (Part(name, heads, width, x, mamba_heads), *grouped)

    projection = f"{prefix}.in_proj.weight"
    z = Part(projection, heads, width, pieces=mamba_heads)
    dt = Part(projection, heads, 1, 2 * inner + 2 * states, mamba_heads)
    return {
        "mixer.in_proj.layer_norm_weight": replicated(norm, hidden),
        "mixer.in_proj.weight": column(z, *stacked(projection, inner), dt, others=(hidden,)),
        "mixer.conv1d_weight": column(*stacked(f"{prefix}.conv1d.weight", 0), others=(1, kernel)),
        "mixer.conv1d_bias": column(*stacked(f"{prefix}.conv1d.bias", 0)),
        "mixer.A_log": per_head("A_log"),
        "mixer.D": per_head("D"),
        "mixer.dt_bias": per_head("dt_bias"),
        "mixer.norm.weight": column(Part(f"{prefix}.norm.weight", groups, inner // groups, pieces=state_groups)),
        "mixer.out_proj.weight": row(Part(f"{prefix}.out_proj.weight", heads, width, pieces=mamba_heads), hidden),
    }


def gated_delta_net(
    prefix: str,
    norm: str,
    projected: tuple[Part, ...],
    *,
    hidden: int,
    heads: int,
    width: int,
    value_heads: int,
    value_width: int,
    kernel: int,
) -> Rules:
    """A `G` layer: `heads` queries and keys of `width` channels, each for an equal share of the `value_heads`.

    projected  queries, keys, values, gates of the output, betas and alphas, in which the families differ
    """
    conv, keys = f"{prefix}.conv1d.weight", heads * width

    def per_head(name: str) -> Rule:
        return column(Part(f"{prefix}.{name}", value_heads, pieces=VALUE_HEADS))

    return {
        "self_attention.in_proj.layer_norm_weight": replicated(norm, hidden),
        "self_attention.in_proj.weight": column(*projected, others=(hidden,)),
        "self_attention.conv1d.weight": column(
            Part(conv, heads, width, 0, KEY_HEADS),
            Part(conv, heads, width, keys, KEY_HEADS),
            Part(conv, value_heads, value_width, 2 * keys, VALUE_HEADS),
            others=(1, kernel),
        ),
        "self_attention.dt_bias": per_head("dt_bias"),
        "self_attention.A_log": per_head("A_log"),
        "self_attention.out_norm.weight": replicated(f"{prefix}.norm.weight", value_width),
        "self_attention.out_proj.weight": row(
            Part(f"{prefix}.out_proj.weight", value_heads, value_width, pieces=VALUE_HEADS), hidden
        ),
    }


def feed_forward(
    megatron: str,
    prefix: str,
    *,
    hidden: int,
    width: int,
    gated: bool,
    over: Literal["tensor", "expert_tensor"] = "tensor",
    suffix: str = "",
) -> Rules:
    """The two linears of an MLP, an expert or a shared expert: [gate,] up and down."""
    inputs = ("gate", "up") if gated else ("up",)
    parts = (Part(f"{prefix}.{name}_proj.weight", width) for name in inputs)
    return {
        f"{megatron}.linear_fc1.weight{suffix}": column(*parts, others=(hidden,), over=over),
        f"{megatron}.linear_fc2.weight{suffix}": row(Part(f"{prefix}.down_proj.weight", width), hidden, over),
    }


def mlp(prefix: str, norm: str, *, hidden: int, width: int, gated: bool) -> Rules:
    """A `-` layer."""
    return {
        "mlp.linear_fc1.layer_norm_weight": replicated(norm, hidden),
        **feed_forward("mlp", prefix, hidden=hidden, width=width, gated=gated),
    }


def router(prefix: str, norm: str, *, hidden: int, experts: int) -> Rules:
    """The part of an `E` layer before its experts."""
    return {
        "pre_mlp_layernorm.weight": replicated(norm, hidden),
        "mlp.router.weight": replicated(f"{prefix}.gate.weight", experts, hidden),
    }


def in_layer(layer: int, rules: Mapping[str, Rule], *, float32: bool = False) -> Iterator[Parameter]:
    """The rules of one layer as parameters of the model."""
    for name, rule in rules.items():
        yield Parameter(f"decoder.layers.{{layer}}.{name}", rule, layer, float32=float32)


def routed_experts(
    layer: int, prefix: str, *, experts: int, hidden: int, width: int, gated: bool
) -> Iterator[Parameter]:
    """The routed experts of an `E` layer: Megatron's grouped linear holds one weight per local expert."""
    for expert in range(experts):
        rules = feed_forward(
            "decoder.layers.{layer}.mlp.experts",
            f"{prefix}.experts.{expert}",
            hidden=hidden,
            width=width,
            gated=gated,
            over="expert_tensor",
            suffix="{expert}",
        )
        for name, rule in rules.items():
            yield Parameter(name, rule, layer, expert)


def language_model(
    layers: list[list[Parameter]],
    *,
    embedding: str,
    norm: str,
    head: str,
    vocabulary_size: int,
    hidden: int,
    experts: int,
    tied: bool,
) -> NameMap:
    """The whole model: embedding, layers, final norm, head. A tied head is the embedding (again)."""
    last = len(layers) - 1
    output = vocabulary(embedding if tied else head, vocabulary_size, hidden)
    parameters = (
        Parameter("embedding.word_embeddings.weight", vocabulary(embedding, vocabulary_size, hidden), 0),
        *(parameter for layer in layers for parameter in layer),
        Parameter("decoder.final_norm.weight", replicated(norm, hidden), last),
        Parameter("output_layer.weight", output, last, tied=tied),
    )
    return NameMap(parameters, len(layers), experts, frozenset({head} if tied else ()))
