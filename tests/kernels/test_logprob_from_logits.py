import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from cascade_rl.kernels.logprob_from_logits import Logprob, logprob_from_logits
from cascade_rl.kernels.parts.vocabulary import IGNORED
from tests.kernels.oracles import PATHS, entropy, gradients, largest_error, leaf, on_path, relative_error


def op(path: str, logits: Tensor, targets: Tensor, temperature: Tensor | float = 1.0, **options) -> Logprob:
    with on_path(path):
        return logprob_from_logits(logits, targets, temperature, **options)


def oracle(logits: Tensor, targets: Tensor, temperature: Tensor | float) -> tuple[Tensor, Tensor, Tensor]:
    t = temperature.double()[:, None] if isinstance(temperature, Tensor) else temperature
    z = logits.double().clamp_min(-1e300) / t
    log_p = torch.log_softmax(z, 1)
    seen = targets != IGNORED
    logprob = log_p.gather(1, targets.clamp_min(0)[:, None])[:, 0]
    return logprob.where(seen, 0), entropy(log_p).where(seen, 0), z.logsumexp(1).where(seen, 0)


def inputs(tokens: int, vocab: int, dtype: torch.dtype = torch.float32, offset: float = 0.0, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randn(tokens, vocab, generator=generator) * 4 + offset).to(dtype).requires_grad_()
    targets = torch.randint(0, vocab, (tokens,), generator=generator)
    return logits, targets, 0.5 + torch.rand(tokens, generator=generator)


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=12, deadline=None, phases=[Phase.explicit, Phase.generate], derandomize=True)
@given(
    tokens=st.integers(0, 20),
    vocab=st.integers(1, 300),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    offset=st.sampled_from([0.0, -500.0, 80.0]),
    inplace=st.booleans(),
    seed=st.integers(0, 99),
)
def test_drawn_shapes_equal_float64(path, tokens, vocab, dtype, offset, inplace, seed):
    logits, targets, temperature = inputs(tokens, vocab, dtype, offset, seed)
    targets[::5] = IGNORED
    reference = leaf(logits)
    expected = oracle(reference, targets, temperature)
    wanted = gradients(expected, [reference])[0]
    found = op(path, logits, targets, temperature, inplace_backward=inplace)
    tolerance = 5e-6 + 3e-7 * abs(offset) * 2
    for output, value in zip(found, expected, strict=True):
        assert output.dtype == torch.float32
        assert largest_error(output, value) < tolerance
    (gradient,) = gradients(found, [logits])
    assert (gradient.double() - wanted).norm() <= max(tolerance, 4e-3 * (dtype == torch.bfloat16)) * (wanted.norm() + 1)
    assert not tokens or (gradient.data_ptr() == logits.data_ptr()) == inplace


@pytest.mark.parametrize("path", PATHS)
def test_minus_infinity_over_whole_blocks(path: str):
    """TE and Liger's selective_log_softmax give NaN where a first block is all minus infinity."""
    logits, targets, temperature = inputs(9, 300)
    with torch.no_grad():
        logits[:, :128] = -torch.inf
        logits[2, :290] = -torch.inf
    targets = 290 + targets % 10
    targets[4] = 5  # itself minus infinity
    expected = oracle(logits, targets, temperature)
    found = op(path, logits, targets, temperature)
    rows = torch.arange(9) != 4
    for output, value in zip(found, expected, strict=True):
        assert output.isfinite().all()
        assert largest_error(output[rows], value[rows]) < 5e-6
    assert found.logprob[4] < -1e29
    (gradient,) = torch.autograd.grad(found.logprob.sum() + found.entropy.sum(), logits)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("level", [-100.0, -200.0])
def test_all_logits_far_below_zero(path: str, level: float):
    """verl's running maximum starts at 0: off by 0.017 at -100, infinite log-prob and NaN entropy at -200."""
    logits = torch.full((2, 100), level)
    found = op(path, logits, torch.tensor([3, 99]))
    expected = torch.tensor(100.0).log()
    assert largest_error(found.logprob, -expected.expand(2)) < 2e-5
    assert largest_error(found.entropy, expected.expand(2)) < 1e-6


@pytest.mark.parametrize("path", PATHS)
def test_rows_of_any_stride_and_more_than_2_to_the_31_elements(path: str):
    """Liger#803, #1296: int32 offsets read the wrong row without an error. Memory is committed where it is touched."""
    stride = 2**31 + 8
    logits = torch.empty(stride + 100, dtype=torch.bfloat16).as_strided((2, 100), (stride, 1)).requires_grad_()
    with torch.no_grad():
        logits.copy_(torch.randn(2, 100))
    targets = torch.tensor([7, 93])
    reference = leaf(logits)
    expected = oracle(reference, targets, 1.0)
    wanted = gradients(expected, [reference])[0]
    found = op(path, logits, targets, inplace_backward=True)
    assert largest_error(found.logprob, expected[0]) < 5e-6
    (gradient,) = gradients(found, [logits])
    assert relative_error(gradient, wanted) < 4e-3
    assert torch.equal(logits.detach(), gradient)


@pytest.mark.parametrize("path", PATHS)
def test_a_second_backward_through_consumed_logits_is_refused(path: str):
    logits, targets, _ = inputs(3, 50)
    total = op(path, logits, targets, inplace_backward=True).logprob.sum()
    total.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


def test_a_row_has_the_same_bits_in_any_batch():
    logits, targets, temperature = inputs(12, 300, torch.bfloat16)
    whole = op("triton", logits, targets, temperature)
    order = torch.randperm(12)[:7]
    some = op("triton", logits[order], targets[order], temperature[order])
    for output, expected in zip(some, whole, strict=True):
        assert torch.equal(output, expected[order])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logits": torch.zeros(3)}, "logits float"),
        ({"targets": torch.zeros(3, device="meta").long()}, "logits and targets on one device"),
        ({"logits": torch.zeros(3, 5).long()}, "logits float"),
        ({"logits": torch.zeros(3, 0)}, "logits float"),
        ({"logits": torch.zeros(5, 3).T}, "next to each other"),
        ({"targets": torch.zeros(2).long()}, r"int64 \[3\]"),
        ({"targets": torch.tensor([0, 5, 1])}, "0..4"),
        ({"temperature": 0.0}, "positive"),
        ({"temperature": torch.ones(2)}, r"temperature \[3\]"),
        ({"chunk_tokens": 0}, "chunk_tokens"),
    ],
)
def test_wrong_arguments_are_named(change: dict, message: str):
    arguments = {"logits": torch.zeros(3, 5), "targets": torch.zeros(3).long()}
    with pytest.raises(ValueError, match=message):
        logprob_from_logits(**(arguments | change))
