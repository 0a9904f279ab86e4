"""The plain-torch twins: what each computes, in float64 and one item at a time, and what ranks start with."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from cascade_rl.engine.backend.machine import backend
from cascade_rl.engine.backend.process_groups import initialize_distributed
from cascade_rl.engine.backend.torch_layers import (
    TorchColumnParallelGroupedLinear,
    TorchDotProductAttention,
    TorchLayerNormColumnParallelLinear,
    TorchNorm,
    TorchRowParallelGroupedLinear,
)
from cascade_rl.engine.core.settings import ParallelConfig
from cascade_rl.engine.models import build_model
from tests.engine.models import tiny
from tests.gloo import run_ranks

HEADS, GROUPS, WIDTH, HIDDEN = 4, 2, 8, 32
LENGTHS = (1, 7, 2, 9)


def config(**changes: object) -> TransformerConfig:
    sizes = {
        "num_layers": 1,
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "num_query_groups": GROUPS,
        "kv_channels": WIDTH,
        "normalization": "RMSNorm",
        "add_bias_linear": False,
    }
    return TransformerConfig(**sizes | backend().config_overrides | changes)


def naive_attention(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Of one sequence [tokens, heads, width], a query and a head at a time; [tokens, heads * width]."""
    rows = []
    for t in range(len(query)):
        for head in range(HEADS):
            group = head // (HEADS // GROUPS)
            weights = (key[: t + 1, group] @ query[t, head] * scale).softmax(0)
            rows.append(weights @ value[: t + 1, group])
    return torch.stack(rows).view(len(query), -1)


def attention(softmax_scale: float | None) -> tuple[Tensor, ...]:
    """Packed, a sequence at a time in Megatron's unpacked layout, and naive in float64."""
    module = TorchDotProductAttention(config(), 1, AttnMaskType.causal, "self", softmax_scale=softmax_scale)
    query, *key_value = (torch.randn(sum(LENGTHS), n, WIDTH) for n in (HEADS, GROUPS, GROUPS))
    borders = torch.tensor([0, *LENGTHS]).cumsum(0).int()
    packed = PackedSeqParams(qkv_format="thd", cu_seqlens_q=borders, cu_seqlens_kv=borders)
    together = module(query, *key_value, packed_seq_params=packed)
    sequences = list(zip(*(x.split(list(LENGTHS)) for x in (query, *key_value)), strict=True))
    alone = torch.cat([module(*(x[:, None] for x in sequence)).squeeze(1) for sequence in sequences])
    scale = softmax_scale or WIDTH**-0.5
    naive = [naive_attention(*(x.double() for x in sequence), scale) for sequence in sequences]
    return together, alone, torch.cat(naive)


@pytest.mark.parametrize("softmax_scale", [None, 0.7])
def test_packed_attention_is_that_of_each_sequence(softmax_scale: float | None) -> None:
    [(together, alone, naive)] = run_ranks(1, attention, softmax_scale)
    assert together.shape == (sum(LENGTHS), HEADS * WIDTH)
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-6)
    torch.testing.assert_close(together.double(), naive, rtol=0, atol=1e-6)


def naive_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    x, weight = x.double(), weight.double()
    if bias is None:
        return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight
    centered = x - x.mean(-1, keepdim=True)
    return centered / (centered.square().mean(-1, keepdim=True) + eps).sqrt() * weight + bias.double()


def fused_norm(normalization: str, zero_centered: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The fused linear and the norm, each with what it should give; all from random norm weights."""
    initialize_distributed(ParallelConfig(), seed=1)
    eps = 1e-3  # large enough to be seen where it is lost
    settings = config(normalization=normalization, layernorm_zero_centered_gamma=zero_centered, layernorm_epsilon=eps)
    linear = TorchLayerNormColumnParallelLinear(
        HIDDEN,
        24,
        config=settings,
        init_method=torch.nn.init.normal_,
        bias=False,
        skip_bias_add=False,
        is_expert=False,
        gather_output=False,
    )
    norm = TorchNorm(settings, HIDDEN, eps)
    assert bool((linear.layer_norm_weight == (0 if zero_centered else 1)).all())
    x = torch.randn(5, 1, HIDDEN) * 0.1
    with torch.no_grad():
        linear.layer_norm_weight.normal_()
        norm.weight.copy_(linear.layer_norm_weight)
        if normalization == "LayerNorm":
            norm.bias.copy_(linear.layer_norm_bias.normal_())
        expected = naive_norm(x, norm.weight + zero_centered, norm.bias, eps)
        return linear(x)[0], expected @ linear.weight.double().T, norm(x), expected


@pytest.mark.parametrize(
    ("normalization", "zero_centered"), [("RMSNorm", False), ("RMSNorm", True), ("LayerNorm", False)]
)
def test_the_norm_is_fused_into_the_linear(normalization: str, zero_centered: bool) -> None:
    [(fused, expected_fused, normed, expected)] = run_ranks(1, fused_norm, normalization, zero_centered)
    torch.testing.assert_close(normed.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(fused.double(), expected_fused, rtol=1e-5, atol=2e-5)


def grouped(cls: type, counts: list[int]) -> tuple[Tensor, ...]:
    """Outputs and gradients of a grouped linear and of a loop over its experts."""
    initialize_distributed(ParallelConfig(), seed=1)
    linear = cls(
        len(counts),
        6,
        10,
        config=config(num_moe_experts=len(counts)),
        init_method=torch.nn.init.normal_,
        bias=False,
        skip_bias_add=True,
        is_expert=True,
        pg_collection=ProcessGroupCollection.use_mpu_process_groups(),
    )
    weights = [getattr(linear, f"weight{i}") for i in range(len(counts))]
    assert list(linear.state_dict()) == [f"weight{i}" for i in range(len(counts))]
    x = torch.randn(sum(counts), 6, requires_grad=True)
    y, bias = linear(x, counts)
    assert bias is None
    expert = np.repeat(np.arange(len(counts)), counts)
    loop = torch.stack([F.linear(row, weights[i]) for row, i in zip(x, expert, strict=True)])
    found, expected = (torch.autograd.grad(out.square().sum(), [x, *weights], allow_unused=True) for out in (y, loop))
    zeros = torch.zeros_like(weights[0])
    return y.detach(), loop.detach(), *found, *(zeros if g is None else g for g in expected)


@pytest.mark.parametrize("counts", [[3, 0, 5, 1], [0, 0, 2, 0]])
@pytest.mark.parametrize("cls", [TorchColumnParallelGroupedLinear, TorchRowParallelGroupedLinear])
def test_grouped_linear_is_a_loop_over_experts(cls: type, counts: list[int]) -> None:
    [(y, loop, *gradients)] = run_ranks(1, grouped, cls, counts)
    torch.testing.assert_close(y, loop)
    found, expected = gradients[: len(counts) + 1], gradients[len(counts) + 1 :]
    assert sum(bool(gradient.any()) for gradient in expected) == 1 + sum(count > 0 for count in counts)
    for got, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(got, wanted)


@pytest.fixture(scope="module")
def hf_config(tmp_path_factory: pytest.TempPathFactory) -> dict:
    folder: Path = tmp_path_factory.mktemp("config")
    tiny.nemotron_h(architectures=["NemotronHForCausalLM"]).save_pretrained(folder)
    return json.loads((folder / "config.json").read_text())


def initial_weights(hf: dict, parallel: ParallelConfig) -> dict[str, Tensor]:
    initialize_distributed(parallel, seed=1)
    model = build_model(hf, parallel, seed=1)
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize(
    "parallel",
    [
        ParallelConfig(expert=2),
        ParallelConfig(tensor=2, expert=2, sequence=True),
        ParallelConfig(tensor=2, expert_tensor=2, sequence=True),
    ],
    ids=["EP2", "TP2 EP2", "TP2 ETP2"],
)
def test_ranks_start_with_different_experts_and_equal_replicas(hf_config: dict, parallel: ParallelConfig) -> None:
    """Ranks that drew the same experts would train half of a model, and no test of a loaded checkpoint sees it."""
    ranks = run_ranks(2, initial_weights, hf_config, parallel)
    experts = [weight for rank in ranks for name, weight in rank.items() if ".experts." in name and "fc1" in name]
    assert len(experts) == 2 * hf_config["n_routed_experts"] * (2 if parallel.expert_tensor > 1 else 1)
    assert len({tuple(weight.flatten()[:4].tolist()) for weight in experts}) == len(experts)
    for name, weight in ranks[0].items():
        replicated = "router" in name or "layernorm" in name or "layer_norm" in name or "final_norm" in name
        if replicated or (parallel.tensor == 1 and ".experts." not in name):
            assert torch.equal(weight, ranks[1][name]), name
        elif weight.dim() > 1 and ".experts." not in name and parallel.tensor > 1:
            assert not torch.equal(weight, ranks[1][name]), name
