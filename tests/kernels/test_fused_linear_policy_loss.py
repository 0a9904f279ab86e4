"""Both paths of `fused_linear_policy_loss` against the two ops it is made of, and against float64."""

import itertools
import weakref

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cascade_rl.kernels.fused_linear_logprob import fused_linear_logprob
from cascade_rl.kernels.fused_linear_policy_loss import fused_linear_policy_loss
from cascade_rl.kernels.parts.vocabulary import IGNORED
from cascade_rl.kernels.policy_loss import SUMS, PolicyLoss, PolicyObjective, policy_loss
from tests.gloo import run_ranks
from tests.kernels.oracles import PATHS, largest_error, leaf, linear_logprob, on_path, relative_error

pytestmark = pytest.mark.slow

TOKENS, WIDTH, VOCAB = 37, 24, 150
EVERYTHING = PolicyObjective("gspo", importance="masked", kl="k3", kl_coefficient=0.2)
OBJECTIVES = [
    PolicyObjective("reinforce", importance="truncated"),
    PolicyObjective("clip", dual_clip=3.0, kl="k1", kl_coefficient=0.1),
    PolicyObjective("cispo", kl="k2", kl_coefficient=0.1),
    EVERYTHING,
]

type Inputs = dict[str, Tensor]


def inputs(tokens: int = TOKENS, padding: int = 0, dtype: torch.dtype = torch.float32) -> Inputs:
    hidden = torch.randn(tokens, WIDTH).to(dtype)
    weight = (0.4 * torch.randn(VOCAB + padding, WIDTH)).to(dtype)
    weight[VOCAB:] = 1e4
    targets = torch.randint(0, VOCAB, (tokens,))
    temperature = 0.5 + torch.rand(tokens)
    logprob = linear_logprob(hidden, weight[:VOCAB], targets, temperature, targets[:, None][:, :0])[0].float()
    near = {f"{name}_logprob": logprob + 0.3 * torch.randn(tokens) for name in ("old", "rollout", "reference")}
    mask = torch.rand(tokens) < 0.7
    mask[:2] = True
    return {
        "hidden": hidden.requires_grad_(),
        "weight": weight.requires_grad_(),
        "targets": targets.where(mask | (torch.rand(tokens) < 0.5), IGNORED),
        "advantage": torch.randn(tokens),
        "mask": mask,
        "cu_seqlens": torch.tensor([0, tokens // 3, tokens // 3, tokens], dtype=torch.int32),
        "temperature": temperature,
        **near,
    }


def fused(path: str, objective: PolicyObjective, given: Inputs, **more) -> PolicyLoss:
    with on_path(path):
        return fused_linear_policy_loss(**given, objective=objective, vocab_size=VOCAB, **more)


def in_two_ops(path: str, objective: PolicyObjective, given: Inputs) -> PolicyLoss:
    given = dict(given)
    operands = [given.pop(name) for name in ("hidden", "weight", "targets", "temperature")]
    with on_path(path):
        return policy_loss(fused_linear_logprob(*operands, vocab_size=VOCAB).logprob, **given, objective=objective)


def in_float64(objective: PolicyObjective, given: Inputs) -> tuple[PolicyLoss, list[Tensor]]:
    given = {name: leaf(t) if name in ("hidden", "weight") else t for name, t in given.items()}
    leaves = hidden, weight = [given.pop("hidden"), given.pop("weight")]
    targets, temperature = given.pop("targets"), given.pop("temperature")
    logprob = linear_logprob(hidden, weight[:VOCAB], targets, temperature, targets[:, None][:, :0])[0]
    return policy_loss(logprob, **given, objective=objective), leaves


def gradients(found: PolicyLoss, given: Inputs, factor: float = 1.0) -> tuple[Tensor, ...]:
    return torch.autograd.grad(factor * found.loss, [given["hidden"], given["weight"]], retain_graph=True)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda objective: objective.surrogate)
def test_equal_to_the_two_ops_and_to_float64(path: str, objective: PolicyObjective):
    given = inputs(padding=10)
    found = fused(path, objective, given)
    parts = in_two_ops(path, objective, given)
    exact, leaves = in_float64(objective, given)
    for name in SUMS:
        assert torch.equal(found.sequences[name], parts.sequences[name])
        assert largest_error(found.sequences[name], exact.sequences[name]) < 3e-5
    assert torch.equal(found.loss, parts.loss)
    wanted = torch.autograd.grad(3 * exact.loss, leaves)
    for gradient, same, reference in zip(
        gradients(found, given, 3.0), gradients(parts, given, 3.0), wanted, strict=True
    ):
        assert relative_error(gradient, same) < 1e-6
        assert relative_error(gradient, reference) < 1e-5


@pytest.mark.parametrize("path", PATHS)
def test_bfloat16(path: str):
    given = inputs(dtype=torch.bfloat16)
    found = fused(path, EVERYTHING, given)
    exact, leaves = in_float64(EVERYTHING, given)
    assert largest_error(found.sequences["loss"], exact.sequences["loss"]) < 3e-5
    for gradient, reference in zip(gradients(found, given), torch.autograd.grad(exact.loss, leaves), strict=True):
        assert gradient.dtype == torch.bfloat16
        assert relative_error(gradient, reference) < 6e-3


@pytest.mark.parametrize("path", PATHS)
def test_tokens_outside_the_mask_may_hold_anything(path: str):
    given = inputs()
    clean = fused(path, EVERYTHING, given)
    mask = given["mask"]
    fill = {name: given[name].detach().where(mask, torch.nan) for name in given if name.endswith("logprob")}
    dirty = given | fill | {"hidden": given["hidden"].detach().where(mask[:, None], torch.nan).requires_grad_()}
    found = fused(path, EVERYTHING, dirty)
    assert torch.equal(found.loss, clean.loss)
    for gradient, wanted in zip(gradients(found, dirty), gradients(clean, given), strict=True):
        assert torch.equal(gradient, wanted)
    assert not gradients(found, dirty)[0][~mask].any()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("tokens", [0, 5])
def test_no_tokens_or_none_in_the_mask(path: str, tokens: int):
    given = inputs(tokens)
    given["mask"] = torch.zeros(tokens).bool()
    given["targets"] = torch.full((tokens,), IGNORED)
    found = fused(path, EVERYTHING, given)
    assert [list(found.sequences[name].shape) for name in SUMS] == [[3]] * len(SUMS)
    grad_hidden, grad_weight = gradients(found, given)
    assert grad_hidden.shape == (tokens, WIDTH)
    for tensor in (found.loss, *found.sequences.values(), grad_hidden, grad_weight):
        assert not tensor.any()


@pytest.mark.parametrize("frozen", ["hidden", "weight"])
def test_a_frozen_head_or_a_frozen_model(frozen: str):
    given = inputs()
    free = "weight" if frozen == "hidden" else "hidden"
    (wanted,) = torch.autograd.grad(fused("triton", EVERYTHING, given).loss, given[free])
    found = fused("triton", EVERYTHING, given | {frozen: given[frozen].detach()})
    assert torch.equal(torch.autograd.grad(found.loss, given[free])[0], wanted)


def test_without_gradients_only_the_value_is_computed():
    given = inputs()
    expected = fused("triton", EVERYTHING, given)
    with torch.no_grad():
        found = fused("triton", EVERYTHING, given)
    assert torch.equal(found.loss, expected.loss)
    assert not found.loss.requires_grad
    frozen = {name: given[name].detach() for name in ("hidden", "weight")}
    assert not fused("triton", EVERYTHING, given | frozen).loss.requires_grad


def test_backward_twice_and_into_what_made_the_hidden_states():
    given = inputs()
    wanted = gradients(fused("torch", EVERYTHING, given), given)[0]
    before = (given["hidden"].detach() / 2).requires_grad_()
    found = fused("torch", EVERYTHING, given | {"hidden": 2 * before})
    for factor in (1.0, 0.5):
        (gradient,) = torch.autograd.grad(factor * found.loss, before, retain_graph=True)
        assert torch.equal(gradient, 2 * factor * wanted)


@pytest.mark.parametrize("path", PATHS)
def test_two_gradients_are_all_that_lives_until_backward(path: str):
    given = inputs()
    saved: list[weakref.ref[Tensor]] = []

    def pack(tensor: Tensor) -> Tensor:
        kept = tensor.view_as(tensor)
        saved.append(weakref.ref(kept))
        return kept

    before = given["hidden"].detach().requires_grad_()
    hidden = before + 0
    gone = weakref.ref(hidden)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        found = fused(path, EVERYTHING, given | {"hidden": hidden})
    del hidden
    assert gone() is None  # nothing holds the hidden states
    alive = [kept.shape for reference in saved if (kept := reference()) is not None]
    assert alive == [(TOKENS, WIDTH), (VOCAB, WIDTH)]
    assert found.loss.requires_grad


class LargestTensor(TorchDispatchMode):
    """The most elements that any operation gave."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        sizes = [x.untyped_storage().nbytes() // x.element_size() for x in tree_leaves(out) if isinstance(x, Tensor)]
        self.elements = max([self.elements, *sizes])
        return out


@pytest.mark.parametrize("path", PATHS)
def test_no_tensor_of_tokens_by_vocabulary_exists(path: str):
    given = inputs(tokens=400)
    with LargestTensor() as largest:
        fused(path, EVERYTHING, given, chunk_tokens=16)
    assert largest.elements < 400 * VOCAB / 2  # on the Triton path a slab of 32 columns is the least there is


def rank_outputs(path: str, given: Inputs) -> tuple[Tensor, ...]:
    """Of this rank: loss, sums, gradient of hidden, gradient of its weight rows."""
    dist.init_process_group("gloo")
    rows = len(given["weight"]) // dist.get_world_size()
    mine = given["weight"].detach()[dist.get_rank() * rows :][:rows].clone().requires_grad_()
    given = given | {"weight": mine}
    found = fused(path, EVERYTHING, given, tp_group=dist.group.WORLD)
    return found.loss.detach(), torch.stack(list(found.sequences.values())), *gradients(found, given)


@pytest.mark.parametrize("path", PATHS)
def test_tensor_parallel(path: str):
    given = inputs(padding=256 - VOCAB)
    expected = fused(path, EVERYTHING, given)
    grad_hidden, grad_weight = gradients(expected, given)
    results = run_ranks(2, rank_outputs, path, given)
    for loss, sums, shard_grad_hidden, _ in results:
        if path == "triton":
            assert torch.equal(loss, expected.loss)
            assert torch.equal(sums, torch.stack(list(expected.sequences.values())))
        assert largest_error(loss, expected.loss) < 3e-5
        assert relative_error(shard_grad_hidden, grad_hidden) < 1e-5
    assert relative_error(torch.cat([result[-1] for result in results]), grad_weight) < 1e-5


def one_bad_shard() -> None:
    dist.init_process_group("gloo")
    half = inputs() | {"weight": torch.zeros(75, WIDTH)}
    fused("triton", EVERYTHING, half, tp_group=dist.group.WORLD)


def test_a_shard_of_part_of_a_tile_is_refused():
    with pytest.raises(ValueError, match=r"multiple of 32 rows.*found 75.*multiple of 64"):
        run_ranks(2, one_bad_shard)


def test_a_sequence_has_the_same_bits_in_any_packing():
    given = inputs()
    whole = fused("triton", EVERYTHING, given)
    for index, (first, last) in enumerate(itertools.pairwise(given["cu_seqlens"].tolist())):
        cut = {n: t if n in ("weight", "cu_seqlens") else t[first:last] for n, t in given.items()}
        cut["cu_seqlens"] = torch.tensor([0, last - first], dtype=torch.int32)
        found = fused("triton", EVERYTHING, cut)
        assert all(torch.equal(found.sequences[name][0], whole.sequences[name][index]) for name in SUMS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": torch.zeros(1, TOKENS, WIDTH)}, "expected hidden"),
        ({"weight": torch.zeros(VOCAB, WIDTH).double()}, "one float dtype"),
        ({"targets": torch.zeros(TOKENS).int()}, r"targets int64 \[37\]"),
        ({"targets": torch.zeros(3).long()}, r"targets int64 \[37\]"),
        ({"targets": torch.full((TOKENS,), IGNORED)}, "a target for each loss token, found -100"),
        ({"targets": torch.full((TOKENS,), VOCAB)}, "0..149"),
        ({"mask": torch.ones(TOKENS)}, r"mask bool \[37\]"),
        ({"mask": torch.ones(3).bool()}, r"mask bool \[37\]"),
        ({"advantage": torch.zeros(3)}, r"advantage \[37\]"),
        ({"targets": torch.zeros(TOKENS, device="meta").long()}, "hidden and targets on one device"),
        ({"rollout_logprob": None}, "needs rollout_logprob"),
        ({"cu_seqlens": torch.tensor([0, 3])}, "ascending from 0 to 37"),
    ],
)
def test_wrong_arguments_are_named(change: dict, message: str):
    with pytest.raises(ValueError, match=message):
        fused("torch", EVERYTHING, inputs() | change)
