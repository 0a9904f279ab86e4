"""Both paths of `fused_linear_logprob` against float64, and the bitwise guarantees of the Triton path."""

from dataclasses import dataclass, field, replace

import pytest
import torch
import torch.distributed as dist
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from cascade_rl.kernels.fused_linear_logprob import LinearLogprob, fused_linear_logprob
from cascade_rl.kernels.parts.vocabulary import IGNORED
from cascade_rl.kernels.runtime.interpreter import interpreted
from tests.gloo import run_ranks
from tests.kernels.oracles import PATHS, gradients, largest_error, leaf, linear_logprob, on_path, relative_error

pytestmark = pytest.mark.slow

NO_SHRINKING = [Phase.explicit, Phase.generate]  # shrinking a failure takes minutes in the interpreter


@dataclass(frozen=True)
class Case:
    hidden: Tensor
    weight: Tensor
    targets: Tensor
    temperature: Tensor | float = 1.0
    vocab_size: int = 0
    candidates: Tensor | None = None
    more: dict = field(default_factory=dict)

    def run(self, path: str = "triton") -> LinearLogprob:
        with on_path(path):
            return fused_linear_logprob(
                self.hidden,
                self.weight,
                self.targets,
                self.temperature,
                vocab_size=self.vocab_size,
                candidates=self.candidates,
                **self.more,
            )

    def leaves(self) -> list[Tensor]:
        return [self.hidden, self.weight]

    def oracle(self) -> tuple[tuple[Tensor, ...], list[Tensor]]:
        leaves = [leaf(x) for x in self.leaves()]
        candidates = self.targets.new_zeros(len(self.targets), 0) if self.candidates is None else self.candidates
        head = leaves[1][: self.vocab_size]
        return linear_logprob(leaves[0], head, self.targets, self.temperature, candidates), leaves

    def largest_logit(self) -> float:
        head = self.weight[: self.vocab_size]
        return float((self.hidden.detach().double() @ head.detach().double().T).abs().max())


def case(
    tokens: int = 37,
    width: int = 24,
    vocab_size: int = 150,
    padding: int = 0,
    dtype: torch.dtype = torch.float32,
    scale: float = 1.0,
    offset: float = 0.0,
    candidates: int = 0,
    seed: int = 0,
) -> Case:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(tokens, width, generator=generator) * scale
    weight = torch.randn(vocab_size + padding, width, generator=generator)
    if offset:
        hidden[:, 0], weight[:, 0] = 1.0, offset
    targets = torch.randint(0, vocab_size, (tokens,), generator=generator)
    ids = torch.randint(0, vocab_size, (tokens, candidates), generator=generator) if candidates else None
    return Case(
        hidden.to(dtype).requires_grad_(),
        weight.to(dtype).requires_grad_(),
        targets,
        temperature=0.5 + torch.rand(tokens, generator=generator),
        vocab_size=vocab_size,
        candidates=ids,
    )


def assert_right(it: Case, path: str, gradient_tolerance: float) -> None:
    found = it.run(path)
    expected, leaves = it.oracle()
    tolerance = 5e-6 + 1e-6 * it.largest_logit()  # the float32 logits themselves are no more accurate
    for name, output, reference in zip(found._fields, found, expected, strict=True):
        assert output.dtype == torch.float32
        assert largest_error(output, reference) < tolerance, name
    for gradient, reference in zip(gradients(found, it.leaves()), gradients(expected, leaves), strict=True):
        assert gradient.dtype == it.hidden.dtype
        assert relative_error(gradient, reference) < gradient_tolerance


@settings(max_examples=14, deadline=None, phases=NO_SHRINKING, derandomize=True)
@given(
    tokens=st.integers(1, 40),
    width=st.integers(1, 40),
    vocab_size=st.integers(2, 200),
    padding=st.integers(0, 40),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    scale=st.sampled_from([1.0, 5.0]),
    offset=st.sampled_from([0.0, -500.0, 80.0]),
    candidates=st.integers(0, 5),
    seed=st.integers(0, 99),
)
def test_drawn_shapes_equal_float64(dtype: torch.dtype, offset: float, **shape):
    it = case(dtype=dtype, offset=0.0 if dtype == torch.float16 else offset, **shape)
    # With an offset, the gradient of its weight column should sum to 0 and is all rounding.
    assert_right(it, "triton", {torch.float32: 1e-4}.get(dtype, 6e-3 if not offset else 2e-2))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 4e-3)])
def test_all_features_at_once(path: str, dtype: torch.dtype, tolerance: float):
    it = case(candidates=4, padding=10, dtype=dtype)
    it.targets[[0, 5, 36]] = IGNORED
    it.candidates[:, 1] = it.candidates[:, 0]  # the same id twice
    it.candidates[:, 2] = it.targets  # the target again, or IGNORED
    with torch.no_grad():
        it.weight[150:] = 1e4
    assert_right(it, path, tolerance)


def peaked() -> Case:
    """V = 32768, bfloat16, two strong candidates a token."""
    it = case(tokens=8, width=64, vocab_size=32768, dtype=torch.bfloat16)
    with torch.no_grad():
        direction = it.weight.float() / it.weight.float().norm(dim=1, keepdim=True)
        rivals = direction[it.targets] + 0.95 * direction[it.targets.roll(1)]
        it.hidden.copy_(2.6 * rivals + 0.2 * it.hidden.float())
    return replace(it, temperature=1.0)


@pytest.mark.parametrize(
    ("path", "saved_bytes"), [("torch", 0), pytest.param("triton", 0, marks=pytest.mark.long), ("triton", 1 << 30)]
)
def test_a_large_peaked_vocabulary(path: str, saved_bytes: int):
    """The kernels' bounds: 5e-6 on log-probs, where bfloat16 logits are off by 7e-2, and 2e-3 on gradients.

    Rounding the exact gradients to bfloat16 alone gives 1.5e-3 (hidden) and 1.7e-3 (weight).
    """
    it = peaked()
    expected, leaves = it.oracle()
    assert 20 < it.largest_logit() < 35
    assert 0.05 < expected[1].mean() < 3
    found = replace(it, more={"saved_bytes": saved_bytes}).run(path)
    assert largest_error(found.logprob, expected[0]) < 5e-6
    assert largest_error(found.entropy, expected[1]) < 5e-6
    wanted = gradients(expected, leaves)
    for gradient, reference in zip(gradients(found, it.leaves()), wanted, strict=True):
        assert relative_error(gradient, reference) < 2e-3


SAVED_BYTES = [0, 5_000, 1 << 30]  # nothing, one or two tiles of five, everything


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 2.2e-3)])
def test_what_is_saved_changes_no_output(dtype: torch.dtype, tolerance: float):
    it = case(candidates=4, padding=10, dtype=dtype)
    it.targets[[0, 5, 36]] = IGNORED
    it.candidates[:, 2] = it.targets
    expected, leaves = it.oracle()
    wanted = gradients(expected, leaves)
    with torch.no_grad():
        whole = it.run()
    for saved_bytes in SAVED_BYTES:
        found = replace(it, more={"saved_bytes": saved_bytes}).run()
        for output, without in zip(found, whole, strict=True):
            assert torch.equal(output, without)
        for gradient, reference in zip(gradients(found, it.leaves()), wanted, strict=True):
            assert relative_error(gradient, reference) < tolerance


def test_rows_without_a_gradient_leave_what_was_saved_in_its_place():
    it = replace(case(dtype=torch.bfloat16), more={"saved_bytes": 1 << 30})
    it.targets[[0, 5]] = IGNORED
    wanted, leaves = it.oracle()
    found = it.run()
    for gradient, reference in zip(
        gradients([found.entropy[9::3]], it.leaves()), gradients([wanted[1][9::3]], leaves), strict=True
    ):
        assert relative_error(gradient, reference) < 3e-3


def bytes_kept(it: Case, saved_bytes: int) -> int:
    """Bytes kept from forward to backward."""
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.nbytes) or t, lambda t: t):
        replace(it, more={"saved_bytes": saved_bytes}).run()
    return sum(kept)


def test_what_is_saved_fits_its_budget():
    it = case()
    without = bytes_kept(it, 0)
    assert 5_000 < bytes_kept(it, 10_000) - without <= 10_000
    assert bytes_kept(it, 1 << 30) - without == 37 * 5 * (32 * 4 + 4)
    with torch.no_grad():
        assert bytes_kept(it, 1 << 30) == 0


def test_backward_twice_gives_the_same_bits():
    it = case(dtype=torch.bfloat16)
    total = it.run().logprob.sum()
    first = torch.autograd.grad(total, it.leaves(), retain_graph=True)
    for gradient, again in zip(first, torch.autograd.grad(total, it.leaves()), strict=True):
        assert torch.equal(gradient, again)


@pytest.mark.parametrize("exponent", [-30, 30])
def test_operands_that_float16_cannot_hold(exponent: int):
    """Backward scales its operands by powers of two, so gradients and inputs may be of any size."""
    it = case(dtype=torch.bfloat16)
    factor = 2.0**exponent
    grad_hidden, grad_weight = torch.autograd.grad(it.run().logprob.sum(), it.leaves())
    small = torch.autograd.grad(it.run().logprob.sum() * factor, it.leaves())
    assert torch.equal(small[0], grad_hidden * factor)
    assert torch.equal(small[1], grad_weight * factor)
    hidden, weight = ((x.detach() * f).requires_grad_() for x, f in ((it.hidden, factor), (it.weight, 1 / factor)))
    moved = replace(it, hidden=hidden, weight=weight)
    moved_hidden, moved_weight = torch.autograd.grad(moved.run().logprob.sum(), moved.leaves())
    assert torch.equal(moved_hidden, grad_hidden / factor)
    assert torch.equal(moved_weight, grad_weight * factor)


@pytest.mark.parametrize("offset", [-500.0, -200.0, 80.0])
def test_a_constant_added_to_all_logits_changes_nothing(offset: float):
    """verl and Megatron start the running maximum at 0: log-probs are off by 0.017 at -100 and infinite at -200."""
    assert_right(case(offset=offset), "triton", 1e-4)


def test_a_first_block_of_minus_infinity():
    """TE's online softmax and Liger's selective_log_softmax give NaN here."""
    it = case(width=25)
    with torch.no_grad():
        it.hidden[:, -1], it.weight[:, -1] = 1.0, 0.0
        it.weight[:70, -1] = -torch.inf  # two whole tiles and a part of the third
    it.targets.clamp_min_(70)
    found = it.run()
    expected = linear_logprob(it.hidden, it.weight[70:], it.targets - 70, it.temperature, it.targets[:, None][:, :0])
    for output, reference in zip(found[:3], expected[:3], strict=True):
        assert largest_error(output, reference) < 2e-5
    (gradient,) = gradients(found, [it.weight])
    assert gradient.isfinite().all()
    assert not gradient[:70].any()


def test_ignored_rows_may_hold_anything_and_cost_nothing():
    """verl leaves the log-prob of ignored labels uninitialised."""
    it = case()
    it.targets[[0, 5, 36]] = IGNORED
    with torch.no_grad():
        it.hidden[[0, 5, 36]] = torch.nan
    found = it.run()
    grad_hidden, grad_weight = gradients(found, it.leaves())
    for output in (*found[:3], grad_hidden):
        assert not output[[0, 5, 36]].any()
        assert output.isfinite().all()
    assert grad_weight.isfinite().all()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("tokens", [0, 5])
def test_no_tokens_or_nothing_but_padding(path: str, tokens: int):
    it = case(tokens=tokens)
    it.targets[:] = IGNORED
    found = it.run(path)
    assert [list(output.shape) for output in found] == [[tokens], [tokens], [tokens], [tokens, 0]]
    for tensor in (*found, *gradients(found, it.leaves())):
        assert not tensor.any()


@pytest.mark.parametrize("name", ["logprob", "entropy", "log_sum_exp", "candidate_logprob"])
def test_the_gradient_of_one_output_alone(name: str):
    it = case(candidates=2)
    expected, leaves = it.oracle()
    found = getattr(it.run(), name)
    reference = dict(zip(LinearLogprob._fields, expected, strict=True))[name]
    expanded = torch.autograd.grad(found.sum(), it.leaves())  # the gradient arrives as an expanded scalar
    for gradient, wanted in zip(expanded, torch.autograd.grad(reference.sum(), leaves), strict=True):
        assert relative_error(gradient, wanted) < 2e-6


def test_a_frozen_head_or_a_frozen_model():
    it = case()
    expected, leaves = it.oracle()
    wanted = gradients(expected, leaves)
    for frozen in (0, 1):
        tensors = [x.detach().requires_grad_(i != frozen) for i, x in enumerate(it.leaves())]
        found = replace(it, hidden=tensors[0], weight=tensors[1]).run()
        assert relative_error(gradients(found, [tensors[1 - frozen]])[0], wanted[1 - frozen]) < 2e-6


def test_views_of_larger_tensors():
    it = case(width=20)
    expected, leaves = it.oracle()
    wide = torch.full((74, 53), torch.nan)
    wide[::2, 1:21] = it.hidden.detach()
    column_major = it.weight.detach().T.contiguous().T
    views = [wide[::2, 1:21].requires_grad_(), column_major.requires_grad_()]
    found = replace(it, hidden=views[0], weight=views[1]).run()
    assert largest_error(found.logprob, expected[0]) < 2e-5
    for gradient, wanted in zip(gradients(found, views), gradients(expected, leaves), strict=True):
        assert relative_error(gradient, wanted) < 2e-6


@pytest.mark.parametrize("path", PATHS)
def test_more_than_2_to_the_31_elements(path: str):
    """int32 offsets read wrong rows (Liger-Kernel#803, #1296; mamba#1015). Untouched memory is not committed."""
    it = case(tokens=2, width=16, vocab_size=3, dtype=torch.bfloat16, candidates=2)
    apart = torch.empty((3 << 30) + 16, dtype=torch.bfloat16).as_strided((3, 16), (1 << 30, 1))
    apart.copy_(it.weight.detach())
    assert_right(replace(it, weight=apart.requires_grad_()), path, 6e-3)


def test_a_token_has_the_same_bits_in_any_batch():
    it = case(tokens=40, dtype=torch.bfloat16, candidates=2)
    whole = it.run()

    def some(rows: Tensor) -> Case:
        return replace(
            it,
            hidden=it.hidden[rows],
            targets=it.targets[rows],
            temperature=it.temperature[rows],
            candidates=it.candidates[rows],
        )

    for rows in (torch.arange(1), torch.arange(7), torch.arange(17) + 20, torch.randperm(40), torch.arange(40)):
        for output, expected in zip(some(rows).run(), whole, strict=True):
            assert torch.equal(output, expected[rows])
    ignored = replace(it, targets=it.targets.where(torch.arange(40) % 2 == 0, IGNORED)).run()
    assert torch.equal(ignored.logprob[::2], whole.logprob[::2])


def test_outputs_are_written_whole(monkeypatch: pytest.MonkeyPatch):
    """Every buffer starts as NaN, so a read of unwritten memory shows."""
    it = case(padding=21)
    it.targets[3] = IGNORED
    expected = [*it.run(), *gradients(it.run(), it.leaves())]
    poisoned = Tensor.new_empty
    monkeypatch.setattr(Tensor, "new_empty", lambda self, *shape, **kw: poisoned(self, *shape, **kw).fill_(torch.nan))
    found = it.run()
    for tensor, clean in zip([*found, *gradients(found, it.leaves())], expected, strict=True):
        assert torch.equal(tensor, clean)


def rank_outputs(it: Case, rows: int) -> list[Tensor]:
    """This rank's outputs, gradient of hidden and gradient of its weight rows, with the head padded to `rows`."""
    dist.init_process_group("gloo")
    shard_rows = rows // dist.get_world_size()
    padded = torch.full((rows, it.weight.shape[1]), 1e4, dtype=it.weight.dtype)
    padded[: it.vocab_size] = it.weight.detach()[: it.vocab_size]
    shard = padded[dist.get_rank() * shard_rows :][:shard_rows].clone().requires_grad_()
    found = replace(it, weight=shard, more=it.more | {"tp_group": dist.group.WORLD}).run()
    return [x.detach() for x in (*found, *gradients(found, [it.hidden, shard]))]


# 512 columns gather groups of two tiles. 300 gather single tiles, and the last ranks hold only padding.
@pytest.mark.parametrize(
    ("vocab_size", "ranks", "rows", "saved_bytes"),
    [(512, 2, 512, 0), (512, 4, 512, 1 << 30), (512, 8, 512, 0), (300, 4, 512, 1 << 30)],
)
def test_tensor_parallel_has_the_same_bits(vocab_size: int, ranks: int, rows: int, saved_bytes: int):
    it = case(tokens=19, vocab_size=vocab_size, dtype=torch.bfloat16, candidates=2)
    it.targets[4] = IGNORED
    it = replace(it, more={"saved_bytes": saved_bytes})
    expected = it.run()
    grad_hidden, grad_weight = gradients(expected, it.leaves())
    results = run_ranks(ranks, rank_outputs, it, rows)
    for *outputs, shard_grad_hidden, _ in results:
        for output, reference in zip(outputs, expected, strict=True):
            assert torch.equal(output, reference)
        assert relative_error(shard_grad_hidden, grad_hidden) < 1e-3  # float32 sums in another order, then bfloat16
    shards = torch.cat([result[-1] for result in results])[: len(grad_weight)]
    assert torch.equal(shards, grad_weight)


# As vLLM cuts Qwen3's head: shards of 4 tiles and 22 columns, and of 2 tiles and 11 columns, of which the last has one.
@pytest.mark.parametrize(
    ("vocab_size", "ranks", "rows", "saved_bytes"),
    [(300, 2, 300, 0), (226, 4, 300, 3 << 12)],
)
def test_a_shard_that_ends_within_a_tile_is_as_exact(vocab_size: int, ranks: int, rows: int, saved_bytes: int):
    it = case(tokens=19, vocab_size=vocab_size, candidates=2)
    it.targets[4] = IGNORED
    expected, leaves = it.oracle()
    grad_hidden, grad_weight = gradients(expected, leaves)
    it = replace(it, more={"saved_bytes": saved_bytes})
    results = run_ranks(ranks, rank_outputs, it, rows)
    for *outputs, shard_grad_hidden, _ in results:
        for output, reference, first in zip(outputs, expected, results[0], strict=False):
            assert largest_error(output, reference) < 5e-6 + 1e-6 * it.largest_logit()
            assert torch.equal(output, first)
        assert relative_error(shard_grad_hidden, grad_hidden) < 2e-6
    shards = torch.cat([result[-1] for result in results])[: len(grad_weight)]
    assert relative_error(shards, grad_weight) < 2e-6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"candidates": torch.zeros(3).long()}, r"candidates int64 \[3, candidates\]"),
        ({"candidates": torch.zeros(3, 1).int()}, r"candidates int64"),
        ({"candidates": torch.full((3, 1), 5)}, "candidates must lie in 0..4"),
        ({"temperature": torch.ones(2)}, r"temperature \[3\]"),
        ({"weight": torch.zeros(5, 4, device="meta")}, "hidden and weight on one device"),
        ({"targets": torch.zeros(3, device="meta").long()}, "hidden and targets on one device"),
        ({"saved_bytes": -1}, "saved_bytes must be 0 or more"),
    ],
)
def test_wrong_arguments_are_named(change: dict, message: str):
    arguments = {"hidden": torch.zeros(3, 4), "weight": torch.zeros(5, 4), "targets": torch.zeros(3).long()}
    with pytest.raises(ValueError, match=message):
        fused_linear_logprob(**(arguments | change), vocab_size=5)


def test_float64_has_no_triton_path_and_needs_none():
    it = case()
    double = replace(it, hidden=it.hidden.double(), weight=it.weight.double())
    with interpreted():
        assert double.run().logprob.dtype == torch.float64
