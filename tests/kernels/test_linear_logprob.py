import math

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from cascade_rl.engine.models.name_map import vocabulary
from cascade_rl.kernels.linear_logprob import IGNORED, linear_logprob
from cascade_rl.kernels.runtime.configs import CONFIGS
from tests.gloo import run_ranks

TOKENS, HIDDEN, VOCAB = 37, 12, 50


def oracle(hidden: Tensor, weight: Tensor, targets: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """The reference: float64, every tensor materialised."""
    logits = hidden.double() @ weight.double().T / temperature.double()[:, None]
    log_p = torch.log_softmax(logits, -1)
    seen = targets != IGNORED
    logprob = log_p.gather(1, targets.clamp(min=0)[:, None])[:, 0]
    entropy = -torch.special.xlogy(log_p.exp(), log_p.exp()).sum(-1)
    return logprob.where(seen, 0), entropy.where(seen, 0)


def inputs(dtype: torch.dtype = torch.float32, rows: int = VOCAB) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    hidden = torch.randn(TOKENS, HIDDEN).to(dtype).requires_grad_()
    weight = torch.randn(rows, HIDDEN).to(dtype).requires_grad_()
    targets = torch.randint(0, VOCAB, (TOKENS,))
    targets[[0, 5, 36]] = IGNORED
    return hidden, weight, targets, 0.5 + torch.rand(TOKENS)


def gradients(outputs: tuple[Tensor, Tensor], coefficients: tuple[Tensor, Tensor], *leaves: Tensor):
    total = sum((output * c.to(output.dtype)).sum() for output, c in zip(outputs, coefficients, strict=True))
    return torch.autograd.grad(total, leaves)


def relative_error(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected.double()).abs().max() / expected.double().abs().max())


@pytest.mark.parametrize("chunk_tokens", [1, 8, 37, 1024])
@pytest.mark.parametrize(
    ("dtype", "gradient_tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 4e-3), (torch.float16, 5e-4)]
)
def test_values_and_gradients_equal_float64(dtype: torch.dtype, gradient_tolerance: float, chunk_tokens: int):
    hidden, weight, targets, temperature = inputs(dtype)
    coefficients = torch.randn(TOKENS), torch.randn(TOKENS)
    found = linear_logprob(hidden, weight, targets, temperature, vocab_size=VOCAB, chunk_tokens=chunk_tokens)
    expected = oracle(hidden, weight, targets, temperature)
    for output, reference in zip(found, expected, strict=True):
        assert output.dtype == torch.float32
        assert (output - reference).abs().max() < 5e-6
    # Gradients have the dtype of the inputs, so their error is one rounding.
    for gradient, reference in zip(
        gradients(found, coefficients, hidden, weight),
        gradients(expected, coefficients, hidden, weight),
        strict=True,
    ):
        assert gradient.dtype == dtype
        assert relative_error(gradient, reference) < gradient_tolerance


def test_gradients_equal_finite_differences():
    hidden = torch.randn(6, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(9, 5, dtype=torch.float64, requires_grad=True)
    targets, temperature = torch.tensor([0, 6, IGNORED, 3, 3, 1]), 0.5 + torch.rand(6)

    def op(hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        return linear_logprob(hidden, weight, targets, temperature, vocab_size=7, chunk_tokens=4)

    assert torch.autograd.gradcheck(op, (hidden, weight), eps=1e-6, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("output", [0, 1])
def test_gradient_of_one_output_alone(output: int):
    hidden, weight, targets, temperature = inputs()
    found = linear_logprob(hidden, weight, targets, temperature, vocab_size=VOCAB)[output]
    expected = oracle(hidden, weight, targets, temperature)[output]
    for gradient, reference in zip(
        torch.autograd.grad(found.sum(), (hidden, weight)),
        torch.autograd.grad(expected.sum(), (hidden, weight)),
        strict=True,
    ):
        assert relative_error(gradient, reference) < 2e-6


def test_frozen_head_or_frozen_model():
    hidden, weight, targets, temperature = inputs()
    expected = torch.autograd.grad(oracle(hidden, weight, targets, temperature)[0].sum(), (hidden, weight))
    linear_logprob(hidden, weight.detach(), targets, temperature, vocab_size=VOCAB)[0].sum().backward()
    linear_logprob(hidden.detach(), weight, targets, temperature, vocab_size=VOCAB)[0].sum().backward()
    assert relative_error(hidden.grad, expected[0]) < 2e-6
    assert relative_error(weight.grad, expected[1]) < 2e-6


def test_temperature_as_one_number():
    hidden, weight, targets, _ = inputs()
    one = linear_logprob(hidden, weight, targets, 0.7, vocab_size=VOCAB)
    each = linear_logprob(hidden, weight, targets, torch.full((TOKENS,), 0.7), vocab_size=VOCAB)
    assert torch.equal(one[0], each[0])
    assert torch.equal(one[1], each[1])


def test_ignored_targets_give_zero_and_no_gradient():
    hidden, weight, targets, temperature = inputs()
    ignored = targets == IGNORED
    with torch.no_grad():
        hidden[ignored] = torch.nan  # padding of a batch may hold anything
    logprob, entropy = linear_logprob(hidden, weight, targets, temperature, vocab_size=VOCAB)
    grad_hidden, grad_weight = torch.autograd.grad((logprob + entropy).sum(), (hidden, weight))
    assert torch.equal(logprob[ignored], torch.zeros(3))
    assert torch.equal(entropy[ignored], torch.zeros(3))
    assert torch.equal(grad_hidden[ignored], torch.zeros(3, HIDDEN))
    reference = gradients(
        oracle(hidden[~ignored], weight, targets[~ignored], temperature[~ignored]),
        (torch.ones(34), torch.ones(34)),
        weight,
    )
    assert relative_error(grad_weight, reference[0]) < 2e-6


def test_nothing_but_padding():
    hidden, weight, _, _ = inputs()
    logprob, entropy = linear_logprob(hidden, weight, torch.full((TOKENS,), IGNORED), 1.0, vocab_size=VOCAB)
    (logprob + entropy).sum().backward()
    for tensor in (logprob, entropy, hidden.grad, weight.grad):
        assert not tensor.any()


def test_padded_columns_take_no_part():
    hidden, weight, targets, temperature = inputs(rows=64)
    with torch.no_grad():
        weight[VOCAB:] = torch.inf
    found = linear_logprob(hidden, weight, targets, temperature, vocab_size=VOCAB)
    expected = oracle(hidden, weight[:VOCAB], targets, temperature)
    assert (found[0] - expected[0]).abs().max() < 5e-6
    coefficients = torch.randn(TOKENS), torch.randn(TOKENS)
    grad_hidden, grad_weight = gradients(found, coefficients, hidden, weight)
    reference_hidden, reference_weight = gradients(expected, coefficients, hidden, weight)
    assert relative_error(grad_hidden, reference_hidden) < 2e-6
    assert relative_error(grad_weight[:VOCAB], reference_weight[:VOCAB]) < 2e-6
    assert torch.equal(grad_weight[VOCAB:], torch.zeros(14, HIDDEN))


def with_offset(offset: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Adds `offset` to the logits of `inputs`: a hidden feature of 1 with a weight of `offset`."""
    hidden, weight, targets, _ = inputs()
    hidden = torch.cat([hidden.detach(), torch.ones(TOKENS, 1)], 1).requires_grad_()
    weight = torch.cat([weight.detach(), torch.full((VOCAB, 1), offset)], 1).requires_grad_()
    return hidden, weight, targets, torch.ones(TOKENS)


@pytest.mark.parametrize("offset", [-500.0, -200.0, 0.0, 500.0])
def test_offset_of_all_logits_changes_nothing(offset: float):
    hidden, weight, targets, temperature = with_offset(offset)
    found = linear_logprob(hidden, weight, targets, temperature, vocab_size=VOCAB)
    expected = oracle(hidden, weight, targets, temperature)
    tolerance = 5e-6 + 3e-7 * abs(offset)  # of the float32 logits themselves
    assert (found[0] - expected[0]).abs().max() < tolerance
    assert (found[1] - expected[1]).abs().max() < tolerance
    coefficients = torch.randn(TOKENS), torch.randn(TOKENS)
    gradient = gradients(found, coefficients, weight)[0][:, :-1]
    reference = gradients(expected, coefficients, weight)[0][:, :-1]
    assert relative_error(gradient, reference) < tolerance


def test_logits_that_are_minus_infinity():
    hidden, weight, targets, temperature = with_offset(0.0)
    with torch.no_grad():
        weight[VOCAB // 2 :, -1] = -torch.inf
    targets[targets >= VOCAB // 2] = 3
    found = linear_logprob(hidden, weight, targets, temperature, vocab_size=VOCAB)
    expected = oracle(hidden, weight[: VOCAB // 2], targets, temperature)
    assert (found[0] - expected[0]).abs().max() < 5e-6
    assert (found[1] - expected[1]).abs().max() < 5e-6
    coefficients = torch.randn(TOKENS), torch.randn(TOKENS)
    (gradient,) = gradients(found, coefficients, weight)
    (reference,) = gradients(expected, coefficients, weight)
    assert relative_error(gradient, reference) < 2e-6


def test_one_token_with_all_the_mass():
    hidden = torch.tensor([[1.0, 0.0]], requires_grad=True)
    weight = torch.tensor([[300.0, 0.0], [-300.0, 0.0], [0.0, 0.0]], requires_grad=True)
    for target, expected in ((0, 0.0), (1, -600.0), (2, -300.0)):
        logprob, entropy = linear_logprob(hidden, weight, torch.tensor([target]), 1.0, vocab_size=3)
        gradient = gradients((logprob, entropy), (torch.ones(1), torch.ones(1)), hidden)[0]
        assert logprob.tolist() == [expected]
        assert entropy.tolist() == [0.0]
        assert gradient.tolist() == [[expected, 0.0]]


def test_uniform_entropy_is_log_of_the_vocabulary():
    logprob, entropy = linear_logprob(torch.zeros(2, 4), torch.randn(10, 4), torch.tensor([0, 6]), 1.0, vocab_size=7)
    assert logprob.tolist() == pytest.approx([-math.log(7)] * 2, abs=1e-6)
    assert entropy.tolist() == pytest.approx([math.log(7)] * 2, abs=1e-6)


def logits_in_memory(tokens: int) -> int:
    """Number of elements that forward keeps for backward."""
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        hidden = torch.randn(tokens, 4, requires_grad=True)
        linear_logprob(hidden, torch.randn(999, 4), torch.zeros(tokens).long(), 1.0, vocab_size=999)
    return sum(kept)


def test_no_logits_are_kept_for_backward():
    # hidden 4 a token; target, temperature, denominator and entropy 1 each.
    assert logits_in_memory(100) - logits_in_memory(50) == 50 * (4 + 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": torch.zeros(1, 3, 4)}, "expected hidden"),
        ({"weight": torch.zeros(5, 3)}, "expected hidden"),
        ({"weight": torch.zeros(5, 4, dtype=torch.bfloat16)}, "one float dtype"),
        ({"hidden": torch.zeros(3, 4).long(), "weight": torch.zeros(5, 4).long()}, "one float dtype"),
        ({"targets": torch.zeros(2).long()}, r"int64 \[3\]"),
        ({"targets": torch.zeros(3).int()}, r"int64 \[3\]"),
        ({"targets": torch.tensor([0, 5, 1])}, "0..4 or be -100, found 5"),
        ({"targets": torch.tensor([0, -1, 1])}, "found -1"),
        ({"temperature": torch.ones(1)}, r"temperature \[3\]"),
        ({"temperature": 0.0}, "positive"),
        ({"temperature": torch.tensor([1.0, -1.0, 1.0])}, "positive"),
        ({"temperature": torch.tensor([1.0, torch.nan, 1.0])}, "positive"),
        ({"vocab_size": 6}, "1..5"),
        ({"chunk_tokens": 0}, "chunk_tokens"),
    ],
)
def test_wrong_arguments_are_named(change: dict, message: str):
    arguments = {
        "hidden": torch.zeros(3, 4),
        "weight": torch.zeros(5, 4),
        "targets": torch.zeros(3).long(),
        "temperature": 1.0,
        "vocab_size": 5,
    }
    with pytest.raises(ValueError, match=message):
        linear_logprob(**(arguments | change))


def shard_results(hidden, weight, targets, temperature, coefficients):
    """This rank's outputs, gradient of hidden, and gradient of its weight rows."""
    dist.init_process_group("gloo")
    rows = len(weight) // dist.get_world_size()
    shard = weight.detach()[dist.get_rank() * rows :][:rows].clone().requires_grad_()
    outputs = linear_logprob(
        hidden, shard, targets, temperature, vocab_size=VOCAB, tp_group=dist.group.WORLD, chunk_tokens=16
    )
    grads = gradients(outputs, coefficients, hidden, shard)
    return [tensor.detach() for tensor in (*outputs, *grads)]


# 4 x 20 weight rows for a vocabulary of 50: the third rank is partly padding, the fourth entirely.
@pytest.mark.parametrize(("ranks", "rows"), [(2, 64), (4, 80)])
def test_tensor_parallel_equals_one_process(ranks: int, rows: int):
    hidden, weight, targets, temperature = inputs(rows=rows)
    coefficients = torch.randn(TOKENS), torch.randn(TOKENS)
    expected = oracle(hidden, weight[:VOCAB], targets, temperature)
    grad_hidden, grad_weight = gradients(expected, coefficients, hidden, weight)
    results = run_ranks(ranks, shard_results, hidden, weight, targets, temperature, coefficients)
    for logprob, entropy, shard_grad_hidden, _ in results:
        assert (logprob - expected[0]).abs().max() < 5e-6
        assert (entropy - expected[1]).abs().max() < 5e-6
        assert relative_error(shard_grad_hidden, grad_hidden) < 2e-6
        assert torch.equal(logprob, results[0][0])
        assert torch.equal(shard_grad_hidden, results[0][2])
    assert relative_error(torch.cat([result[3] for result in results]), grad_weight) < 2e-6


def test_tensor_parallel_with_logits_far_from_zero():
    hidden, weight, targets, temperature = with_offset(-500.0)
    with torch.no_grad():
        weight[VOCAB // 2 :, -1] = 500.0  # the ranks' maxima are 1000 apart
    coefficients = torch.randn(TOKENS), torch.randn(TOKENS)
    expected = oracle(hidden, weight, targets, temperature)
    results = run_ranks(2, shard_results, hidden, weight, targets, temperature, coefficients)
    for logprob, entropy, *grads in results:
        assert (logprob - expected[0]).abs().max() < 3e-4
        assert (entropy - expected[1]).abs().max() < 3e-4
        assert all(gradient.isfinite().all() for gradient in grads)


@pytest.mark.parametrize("arch", ["sm90", "sm100"])
@pytest.mark.parametrize("vocab_size", [49152, 131072, 151936])
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_the_engines_padding_gives_whole_column_groups(arch: str, vocab_size: int, ranks: int) -> None:
    """SmolLM2, Nemotron-3-Nano, Qwen3: the ops accept the shards that a trainer on GPUs passes to them."""
    (rows, _) = vocabulary("", vocab_size, 1).shard_shape(ranks)
    assert rows % CONFIGS[arch].group_columns(rows * ranks) == 0
