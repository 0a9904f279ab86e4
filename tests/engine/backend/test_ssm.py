"""The chunked scan and its convolution against the recurrence they stand for, token by token in float64."""

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cascade_rl.engine.backend.ssm import GroupedRMSNorm, causal_conv1d, split_conv1d_scan, ssd_scan

HEADS, HEAD_DIM, GROUPS, STATE, WIDTH = 4, 3, 2, 5, 4
# borders inside a chunk, on a chunk's border, of one token, shorter than the convolution, over many chunks
LENGTHS = {"one sequence": (37,), "packed": (1, 7, 8, 2, 1, 1, 17, 3), "two tokens": (2,), "one token": (1,)}


@dataclass(frozen=True)
class Scan:
    """Arguments of `ssd_scan` but for the chunk, batch of 2."""

    x: Tensor
    dt: Tensor
    A: Tensor
    B: Tensor
    C: Tensor
    seq_idx: Tensor

    def floats(self, dtype: torch.dtype) -> list[Tensor]:
        return [t.to(dtype).detach().requires_grad_() for t in (self.x, self.dt, self.A, self.B, self.C)]


def make_scan(lengths: tuple[int, ...], dt_scale: float = 1.0) -> Scan:
    tokens = sum(lengths)
    draw = torch.Generator().manual_seed(5)

    def normal(*shape: int) -> Tensor:
        return torch.randn(2, tokens, *shape, generator=draw, dtype=torch.float64)

    return Scan(
        x=normal(HEADS, HEAD_DIM),
        dt=F.softplus(normal(HEADS)) * dt_scale,
        A=-torch.linspace(0.1, 16.0, HEADS, dtype=torch.float64),
        B=normal(GROUPS, STATE),
        C=normal(GROUPS, STATE),
        seq_idx=sequence_index(lengths),
    )


def sequence_index(lengths: tuple[int, ...]) -> Tensor:
    index = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    return index.to(torch.int32).expand(2, -1)


def recurrence(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, seq_idx: Tensor) -> Tensor:
    """h_t = exp(dt A) h_(t-1) + dt B_t x_t; y_t = C_t h_t, and nothing else."""
    B, C = (t.repeat_interleave(HEADS // GROUPS, 2) for t in (B, C))  # [b, tokens, heads, state]
    state, ys = torch.zeros_like(x[:, 0, :, :, None] * B[:, 0, :, None]), []  # [b, heads, head_dim, state]
    for t in range(x.size(1)):
        if t and not torch.equal(seq_idx[:, t], seq_idx[:, t - 1]):
            state = torch.zeros_like(state)
        new = dt[:, t, :, None, None] * x[:, t, :, :, None] * B[:, t, :, None]
        state = state * (dt[:, t] * A).exp()[..., None, None] + new
        ys.append((state * C[:, t, :, None]).sum(-1))
    return torch.stack(ys, 1)


def value_and_gradients(fn, inputs: list[Tensor]) -> list[Tensor]:
    y = fn(*inputs)
    weights = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).view_as(y).to(y.dtype)
    return [y.detach(), *torch.autograd.grad((y * weights).sum(), inputs)]


def assert_relative(found: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    """Each tensor within `tolerance` of its own largest value."""
    for got, wanted in zip(found, expected, strict=True):
        assert (got.double() - wanted).abs().max() <= tolerance * wanted.abs().max()


@pytest.mark.parametrize("chunk", [1, 4, 8, 64])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_scan_is_the_recurrence(lengths: tuple[int, ...], chunk: int) -> None:
    scan = make_scan(lengths)
    expected = value_and_gradients(lambda *inputs: recurrence(*inputs, scan.seq_idx), scan.floats(torch.float64))
    for dtype, tolerance in ((torch.float64, 1e-13), (torch.float32, 5e-6)):
        found = value_and_gradients(lambda *inputs: ssd_scan(*inputs, chunk, scan.seq_idx), scan.floats(dtype))
        assert found[0].dtype == dtype
        assert_relative(found, expected, tolerance)


@pytest.mark.parametrize("dt_scale", [1e-4, 20.0], ids=["slow decay", "decay that underflows"])
def test_scan_holds_where_decays_are_extreme(dt_scale: float) -> None:
    """Above the diagonal exp would overflow; below it the state of hundreds of tokens adds up."""
    scan = make_scan((300, 84), dt_scale)
    expected = value_and_gradients(lambda *inputs: recurrence(*inputs, scan.seq_idx), scan.floats(torch.float64))
    found = value_and_gradients(lambda *inputs: ssd_scan(*inputs, 128, scan.seq_idx), scan.floats(torch.float32))
    assert_relative(found[:1], expected[:1], 5e-6)
    # differences of prefix sums over 128 tokens of dt A up to -1000, as in mamba_ssm
    assert_relative(found[1:], expected[1:], 2e-4)


def packed_convolution(x: Tensor, weight: Tensor, bias: Tensor | None, lengths: tuple[int, ...]) -> Tensor:
    """torch's own convolution, a sequence at a time."""
    parts = [F.pad(part.transpose(1, 2), (WIDTH - 1, 0)) for part in x.split(list(lengths), 1)]
    return torch.cat([F.conv1d(p, weight[:, None], bias, groups=len(weight)).mT for p in parts], 1)


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_convolution_stays_in_its_sequence(lengths: tuple[int, ...], biased: bool) -> None:
    channels = 6
    inputs = [torch.randn(2, sum(lengths), channels), torch.randn(channels, WIDTH), torch.randn(channels)]
    inputs = [tensor.double().requires_grad_() for tensor in inputs[: 2 + biased]]
    bias = (None,) * (not biased)
    expected = value_and_gradients(lambda *args: packed_convolution(*args, *bias, lengths), inputs)
    found = value_and_gradients(lambda *args: causal_conv1d(*args, *bias, sequence_index(lengths)), inputs)
    assert_relative(found, expected, 1e-14)


def mixer_arguments(lengths: tuple[int, ...], dtype: torch.dtype) -> dict[str, Tensor]:
    inner, grouped = HEADS * HEAD_DIM, GROUPS * STATE
    draw = torch.Generator().manual_seed(7)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64).to(dtype)

    return {
        "zxbcdt": normal(2, sum(lengths), 2 * inner + 2 * grouped + HEADS),
        "conv1d_weight": normal(inner + 2 * grouped, WIDTH),
        "conv1d_bias": normal(inner + 2 * grouped),
        "dt_bias": normal(HEADS),
        "A": -normal(HEADS).abs(),
        "D": normal(HEADS),
    }


def mixer(lengths: tuple[int, ...], arguments: dict[str, Tensor]) -> Tensor:
    """What a Mamba-2 mixer does between its two linears, written down a second time."""
    inner, grouped = HEADS * HEAD_DIM, GROUPS * STATE
    z, xbc, dt = arguments["zxbcdt"].split([inner, inner + 2 * grouped, HEADS], -1)
    xbc = packed_convolution(xbc, arguments["conv1d_weight"], arguments["conv1d_bias"], lengths)
    x, B, C = F.silu(xbc).split([inner, grouped, grouped], -1)
    x = x.unflatten(-1, (HEADS, HEAD_DIM))
    y = recurrence(
        x,
        F.softplus(dt + arguments["dt_bias"]),
        arguments["A"],
        B.unflatten(-1, (GROUPS, STATE)),
        C.unflatten(-1, (GROUPS, STATE)),
        sequence_index(lengths),
    )
    return (y + x * arguments["D"][:, None]).flatten(-2) * F.silu(z)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_mixer_kernel_is_conv_scan_skip_and_gate(
    lengths: tuple[int, ...], dtype: torch.dtype, tolerance: float
) -> None:
    arguments = mixer_arguments(lengths, dtype)
    y = split_conv1d_scan(**arguments, chunk_size=8, headdim=HEAD_DIM, ngroups=GROUPS, seq_idx=sequence_index(lengths))
    assert y.dtype == dtype
    assert_relative([y], [mixer(lengths, {name: t.double() for name, t in arguments.items()})], tolerance)


def test_without_an_index_a_row_is_one_sequence() -> None:
    arguments = mixer_arguments((19,), torch.float32)
    settings = {"chunk_size": 8, "headdim": HEAD_DIM, "ngroups": GROUPS}
    indexed = split_conv1d_scan(**arguments, **settings, seq_idx=sequence_index((19,)))
    assert torch.equal(split_conv1d_scan(**arguments, **settings), indexed)


def test_norm_is_that_of_each_group() -> None:
    norm = GroupedRMSNorm(12, eps=1e-5, group_size=4)
    x = torch.randn(3, 2, 12)
    with torch.no_grad():
        norm.weight.copy_(torch.randn(12))
        grouped = x.double().view(3, 2, 3, 4)
        scaled = grouped / (grouped.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        expected = scaled.view(3, 2, 12) * norm.weight.double()
        torch.testing.assert_close(norm(x).double(), expected, rtol=0, atol=1e-6)
