import pytest
import torch
import torch.distributed as dist
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from cascade_rl.kernels.fused_linear_kl import fused_linear_kl
from tests.gloo import run_ranks
from tests.kernels.oracles import PATHS, gradients, largest_error, leaf, log_softmax, on_path, relative_error

pytestmark = pytest.mark.slow

KINDS = ["reverse", "forward", "jsd"]
BETA = 0.3


def oracle(kind: str, hidden: Tensor, weight: Tensor, teacher: Tensor, teacher_weight: Tensor, temperature) -> Tensor:
    log_p = log_softmax(hidden, weight, temperature)
    log_q = log_softmax(teacher, teacher_weight, temperature)
    p, q = log_p.exp(), log_q.exp()
    if kind == "reverse":
        return (p * (log_p - log_q)).sum(1)
    if kind == "forward":
        return (q * (log_q - log_p)).sum(1)
    log_m = torch.logaddexp(log_p + torch.tensor(1 - BETA).double().log(), log_q + torch.tensor(BETA).double().log())
    return BETA * (q * (log_q - log_m)).sum(1) + (1 - BETA) * (p * (log_p - log_m)).sum(1)


def inputs(
    tokens: int = 21, widths: tuple[int, int] = (24, 40), rows: int = 150, dtype=torch.float32, offset=0.0, seed=0
) -> list[Tensor]:
    """Random hidden, weight, teacher hidden, teacher weight and temperature."""
    generator = torch.Generator().manual_seed(seed)
    tensors = []
    for width in widths:
        hidden = torch.randn(tokens, width, generator=generator)
        weight = torch.randn(rows, width, generator=generator) / 2
        if offset:
            hidden[:, 0], weight[:, 0] = 1.0, offset
        tensors += [hidden.to(dtype), weight.to(dtype)]
    for tensor in tensors[:2]:
        tensor.requires_grad_()
    return [*tensors, 0.5 + torch.rand(tokens, generator=generator)]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=8, deadline=None, phases=[Phase.explicit, Phase.generate], derandomize=True)
@given(
    tokens=st.integers(0, 36),
    widths=st.tuples(st.integers(1, 30), st.integers(1, 30)),
    vocab_size=st.integers(2, 120),
    padding=st.integers(0, 40),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    offset=st.sampled_from([0.0, -500.0, 80.0]),
    seed=st.integers(0, 99),
)
def test_drawn_shapes_equal_float64(kind, path, tokens, widths, vocab_size, padding, dtype, offset, seed):
    tensors = inputs(tokens, widths, vocab_size + padding, dtype, offset, seed)
    with torch.no_grad():
        tensors[1][vocab_size:] = 1e4
    leaves = [leaf(tensors[0]), leaf(tensors[1])]
    expected = oracle(kind, leaves[0], leaves[1][:vocab_size], tensors[2], tensors[3][:vocab_size], tensors[4])
    with on_path(path):
        found = fused_linear_kl(*tensors, kind=kind, vocab_size=vocab_size, beta=BETA)
    assert found.dtype == torch.float32
    rounding = 1e-5 + 2e-6 * abs(offset)  # of the float32 logits, which may be as large as the offset
    assert largest_error(found, expected) < rounding * (1 + float(expected.detach().amax() if tokens else 0))
    grad_hidden, grad_weight = gradients([found], tensors[:2])
    wanted_hidden, wanted_weight = gradients([expected], leaves)
    tolerance = rounding if dtype == torch.float32 else 6e-3 + rounding
    assert (grad_weight - wanted_weight).norm() <= tolerance * (1e-3 + wanted_weight.norm())
    # The constant column's gradient is the offset times a sum that should be 0, so it is all rounding.
    assert (grad_hidden - wanted_hidden)[:, 1:].norm() <= tolerance * (1e-3 + wanted_hidden[:, 1:].norm())


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", KINDS)
def test_equal_models_have_no_divergence(kind: str, path: str):
    hidden, weight, _, _, temperature = inputs()
    with on_path(path):
        found = fused_linear_kl(hidden, weight, hidden, weight, temperature, kind=kind, vocab_size=150)
    assert largest_error(found, torch.zeros(21)) < 1e-6
    for gradient in gradients([found], [hidden, weight]):
        assert gradient.abs().max() < 1e-5


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", KINDS)
def test_probabilities_that_underflow(kind: str, path: str):
    """Liger's JSD is NaN where p and q are below exp(-104) (Liger-Kernel#1453)."""
    hidden = torch.ones(1, 1, requires_grad=True)
    weight = torch.tensor([[0.0], [-200.0], [-300.0]], requires_grad=True)
    teacher = torch.tensor([[0.0], [-220.0], [-290.0]])
    with on_path(path):
        found = fused_linear_kl(hidden, weight, hidden, teacher, kind=kind, vocab_size=3)
    assert abs(float(found.detach())) < 1e-6
    assert all(gradient.isfinite().all() for gradient in gradients([found], [hidden, weight]))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", KINDS)
def test_masked_rows_may_hold_anything(kind: str, path: str):
    tensors = inputs()
    mask = torch.rand(21) < 0.6
    clean = oracle(kind, *tensors)
    with torch.no_grad():
        tensors[0][~mask], tensors[2][~mask] = torch.nan, torch.nan
    with on_path(path):
        found = fused_linear_kl(*tensors, kind=kind, vocab_size=150, beta=BETA, mask=mask)
    grad_hidden, grad_weight = gradients([found], tensors[:2])
    assert largest_error(found[mask], clean[mask]) < 1e-5
    assert not found[~mask].any()
    assert not grad_hidden[~mask].any()
    assert grad_weight.isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_has_the_same_bits_in_any_batch(kind: str):
    tensors = inputs(40, dtype=torch.bfloat16)
    order = torch.randperm(40)[:17]
    some = [tensors[0][order], tensors[1], tensors[2][order], tensors[3], tensors[4][order]]
    with on_path("triton"):
        whole = fused_linear_kl(*tensors, kind=kind, vocab_size=150)
        assert torch.equal(fused_linear_kl(*some, kind=kind, vocab_size=150), whole[order])


def rank_outputs(kind: str, path: str, tensors: list[Tensor]) -> list[Tensor]:
    dist.init_process_group("gloo")
    rows = len(tensors[1]) // dist.get_world_size()
    mine = slice(dist.get_rank() * rows, (dist.get_rank() + 1) * rows)
    hidden, weight, teacher, teacher_weight, temperature = tensors
    shard = weight.detach()[mine].clone().requires_grad_()
    arguments = (hidden, shard, teacher, teacher_weight[mine], temperature)
    with on_path(path):
        found = fused_linear_kl(
            *arguments, kind=kind, vocab_size=250, beta=BETA, tp_group=dist.group.WORLD, chunk_tokens=8
        )
    return [found.detach(), *gradients([found], [hidden, shard])]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("kind", "ranks"), [("reverse", 2), ("forward", 4), ("jsd", 4)])
def test_tensor_parallel_equals_one_process(kind: str, ranks: int, path: str):
    tensors = inputs(rows=256)
    with on_path(path):
        expected = fused_linear_kl(*tensors, kind=kind, vocab_size=250, beta=BETA)
    grad_hidden, grad_weight = gradients([expected], tensors[:2])
    results = run_ranks(ranks, rank_outputs, kind, path, tensors)
    for found, shard_grad_hidden, _ in results:
        assert torch.equal(found, expected) if path == "triton" else largest_error(found, expected) < 1e-4
        assert relative_error(shard_grad_hidden, grad_hidden) < 2e-6
    assert relative_error(torch.cat([result[2] for result in results]), grad_weight) < 2e-6


def test_a_shard_that_ends_within_a_tile_is_as_exact():
    tensors = inputs(rows=250)
    with on_path("triton"):
        expected = fused_linear_kl(*tensors, kind="jsd", vocab_size=250, beta=BETA)
    for found, *_ in run_ranks(2, rank_outputs, "jsd", "triton", tensors):
        assert largest_error(found, expected) < 1e-6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"teacher_hidden": torch.zeros(2, 6)}, "2 tokens"),
        ({"teacher_weight": torch.zeros(4, 6)}, "4 rows"),
        ({"teacher_weight": torch.zeros(5, 7)}, "expected hidden"),
        ({"hidden": torch.zeros(3, 4).bfloat16(), "weight": torch.zeros(5, 4).bfloat16()}, "one dtype"),
        (
            {
                "teacher_hidden": torch.zeros(3, 6, device="meta"),
                "teacher_weight": torch.zeros(5, 6, device="meta"),
            },
            "hidden and teacher_hidden on one device",
        ),
        ({"kind": "backward"}, "kind must be one of"),
        ({"beta": 1.0}, "beta"),
        ({"mask": torch.ones(3)}, r"mask bool \[3\]"),
        ({"temperature": -1.0}, "positive"),
        ({"vocab_size": 6}, "1..5"),
        ({"chunk_tokens": 0}, "chunk_tokens"),
    ],
)
def test_wrong_arguments_are_named(change: dict, message: str):
    arguments = {
        "hidden": torch.zeros(3, 4),
        "weight": torch.zeros(5, 4),
        "teacher_hidden": torch.zeros(3, 6),
        "teacher_weight": torch.zeros(5, 6),
        "kind": "reverse",
        "vocab_size": 5,
    }
    with pytest.raises(ValueError, match=message):
        fused_linear_kl(**(arguments | change))
