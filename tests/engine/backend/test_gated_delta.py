"""The gated delta rule in chunks against the recurrence that it stands for, token by token in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cascade_rl.engine.backend import fla
from cascade_rl.engine.backend.gated_delta import CHUNK, gated_delta_rule, l2norm

HEADS, KEY, VALUE = 3, 5, 4
# borders inside a chunk, on a chunk's border, of one token, of none, over many chunks
LENGTHS = {"one sequence": (150,), "packed": (1, CHUNK, 7, 0, CHUNK + 1, 2, 130), "short": (3, 1, 5), "one token": (1,)}


def inputs(tokens: int, strength: float = 1.0) -> list[Tensor]:
    """q, k, v, g and beta."""
    draw = torch.Generator().manual_seed(5)

    def normal(*shape: int) -> Tensor:
        return torch.randn(tokens, HEADS, *shape, generator=draw, dtype=torch.float64)

    q, k = (F.normalize(normal(KEY), dim=-1) for _ in range(2))
    return [q, k, normal(VALUE), -strength * F.softplus(normal()), normal().sigmoid()]


def recurrence(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, states: Tensor, lengths: tuple[int, ...]):
    """S = exp(g) S; S = S + beta k (v - S^T k)^T; o = S^T q / sqrt(channels), and nothing else."""
    outputs, last = [v[:0]], []
    for state, *parts in zip(states, *(x.split(lengths) for x in (q, k, v, g, beta)), strict=True):
        for query, key, value, decay, written in zip(*parts, strict=True):
            state = state * decay.exp()[:, None, None]
            known = torch.einsum("hkv,hk->hv", state, key)
            state = state + torch.einsum("hk,hv->hkv", key, written[:, None] * (value - known))
            outputs.append(torch.einsum("hkv,hk->hv", state, query)[None] / KEY**0.5)
        last.append(state)
    return torch.cat(outputs), torch.stack(last)


def with_gradients(rule, given: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    leaves = [x.to(dtype).requires_grad_() for x in given]
    results = rule(*leaves)
    weighted = [(x * torch.linspace(-1, 1, x.numel(), dtype=dtype).view_as(x)).sum() for x in results]
    return [*(x.detach() for x in results), *torch.autograd.grad(sum(weighted), leaves)]


def worst(found: list[Tensor], expected: list[Tensor]) -> float:
    """The largest gap, relative to the largest number of its tensor."""
    pairs = zip(found, expected, strict=True)
    return max(float((x.double() - y).abs().max() / y.abs().max()) for x, y in pairs)


@pytest.mark.parametrize("strength", [1e-3, 1.0, 50.0], ids=["slow decay", "decay", "decay that underflows"])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_chunks_are_the_recurrence_from_any_state(lengths: tuple[int, ...], strength: float) -> None:
    states = torch.randn(len(lengths), HEADS, KEY, VALUE, generator=torch.Generator().manual_seed(6)).double()
    given = [*inputs(sum(lengths), strength), states]
    expected = with_gradients(lambda *all: recurrence(*all, lengths), given, torch.float64)
    for dtype, bound in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        found = with_gradients(lambda *all: gated_delta_rule(*all[:5], torch.tensor(lengths), all[5]), given, dtype)
        assert {x.dtype for x in found} == {dtype}
        assert worst(found, expected) < bound


def test_a_sequence_goes_on_from_its_state() -> None:
    """As an engine decodes: a prompt, then one token after the other."""
    given = inputs(70)
    whole, last = gated_delta_rule(*given, lengths=torch.tensor([70]))
    begun, state = gated_delta_rule(*(x[:66] for x in given), lengths=torch.tensor([66]))
    outputs = [begun]
    for token in range(66, 70):
        one, state = gated_delta_rule(*(x[token : token + 1] for x in given), lengths=torch.tensor([1]), initial=state)
        outputs.append(one)
    torch.testing.assert_close(torch.cat(outputs), whole, rtol=0, atol=1e-13)
    torch.testing.assert_close(state, last, rtol=0, atol=1e-13)


@pytest.mark.parametrize("lengths", [(9, 1, 30), None], ids=["packed", "rows"])
def test_megatron_gets_what_it_asks_fla_for(lengths: tuple[int, ...] | None) -> None:
    rows, tokens = (1, 40) if lengths else (2, 20)
    borders = torch.tensor([0, *lengths]).cumsum(0).int() if lengths else None
    q, k, v, g, beta = (x.view(rows, tokens, *x.shape[1:]) for x in inputs(40))
    fixed = {"initial_state": None, "output_final_state": False}
    rule, _ = fla.chunk_gated_delta_rule(
        q, k, v, g=g, beta=beta, cu_seqlens=borders, use_qk_l2norm_in_kernel=False, **fixed
    )
    alone = torch.tensor(lengths or (tokens,) * rows)
    expected, _ = gated_delta_rule(*(x.flatten(0, 1) for x in (q, k, v, g, beta)), lengths=alone)
    torch.testing.assert_close(rule, expected.view_as(v), rtol=0, atol=0)

    x, weight = torch.randn(rows, tokens, 6), torch.randn(6, 4)
    convolved, _ = fla.causal_conv1d(x=x, weight=weight, bias=None, activation="silu", cu_seqlens=borders, **fixed)
    padded = [F.pad(part, (0, 0, 3, 0)).T for part in x.flatten(0, 1).split(alone.tolist())]
    summed = torch.cat([F.conv1d(part, weight[:, None], groups=6).T for part in padded])
    torch.testing.assert_close(convolved, F.silu(summed).view_as(x), rtol=1e-5, atol=1e-6)


def test_the_norm_is_taken_in_float32() -> None:
    x = torch.randn(3, 4, 128).bfloat16()
    expected = x.double() / (x.double().square().sum(-1, keepdim=True) + 1e-6).sqrt()
    assert l2norm(x).dtype == torch.bfloat16
    assert torch.equal(l2norm(x), expected.bfloat16())
