"""Both paths of `policy_loss` against formulas written per token in float64."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from cascade_rl.kernels.policy_loss import SUMS, PolicyLoss, PolicyObjective, policy_loss
from tests.kernels.oracles import PATHS, on_path

CU_SEQLENS = torch.tensor([0, 3, 3, 20, 64], dtype=torch.int32)  # one sequence is empty
TOKENS = 64
OBJECTIVES = [
    PolicyObjective(surrogate, clip_high=0.28, dual_clip=dual, importance=importance, kl=kl, kl_coefficient=0.3)
    for surrogate, importance, kl in itertools.product(
        ["reinforce", "clip", "cispo", "gspo"], ["off", "truncated", "masked"], ["off", "k1", "k2", "k3"]
    )
    for dual in ([None, 3.0] if surrogate in ("clip", "gspo") and importance == kl == "off" else [None])
]


def inputs(dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    logprob = -3 * torch.rand(TOKENS)
    near = {name: logprob + 0.4 * torch.randn(TOKENS) for name in ("old", "rollout", "reference")}
    near["old"][[2, 30]] += torch.tensor([-3.0, 3.0])  # far outside every clip
    return {
        "logprob": logprob.to(dtype).requires_grad_(),
        "advantage": torch.randn(TOKENS),
        "mask": torch.rand(TOKENS) < 0.8,
        "cu_seqlens": CU_SEQLENS,
        **{f"{name}_logprob": value for name, value in near.items()},
    }


def op(path: str, objective: PolicyObjective, **tensors: Tensor) -> PolicyLoss:
    with on_path(path):
        return policy_loss(objective=objective, **tensors)


def one_token(o: PolicyObjective, lp: Tensor, a: float, old: float, rollout: float, ref: float, rho: Tensor) -> Tensor:
    """The formula of one token, as in the papers."""
    low, high = 1 - o.clip_low, 1 + o.clip_high
    if o.surrogate == "reinforce":
        s = a * lp
    elif o.surrogate == "cispo":
        s = min(max(float(rho), low), high) * a * lp
    else:
        s = min(rho * a, min(max(rho, torch.tensor(low)), torch.tensor(high)) * a)
        if o.dual_clip and a < 0:
            s = max(s, torch.tensor(o.dual_clip * a))
    v = math.exp(old - rollout)
    w = {"off": 1.0, "truncated": min(v, o.importance_high),
         "masked": v if o.importance_low <= v <= o.importance_high else 0.0}[o.importance]  # fmt: skip
    d = ref - lp
    kl = {"off": 0 * d, "k1": -d, "k2": d**2 / 2, "k3": d.exp() - 1 - d}[o.kl]
    return o.kl_coefficient * kl - w * s


def oracle(o: PolicyObjective, t: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Loss of each sequence, gradient of their sum."""
    lp = t["logprob"].detach().double().requires_grad_()
    losses = []
    for first, last in itertools.pairwise(CU_SEQLENS.tolist()):
        seen = [i for i in range(first, last) if t["mask"][i]]
        total = lp.new_zeros(())
        mean = sum(float(lp[i] - t["old_logprob"][i]) for i in seen) / max(len(seen), 1)
        for i in seen:
            rho = (lp[i] - float(t["old_logprob"][i])).exp()
            if o.surrogate == "gspo":
                rho = (mean + lp[i] - lp[i].detach()).exp()
            rest = (float(t[name][i]) for name in ("advantage", "old_logprob", "rollout_logprob", "reference_logprob"))
            total = total + one_token(o, lp[i], *rest, rho)
        losses.append(total)
    stacked = torch.stack(losses)
    (gradient,) = torch.autograd.grad(stacked.sum(), lp)
    return stacked.detach(), gradient


@pytest.mark.parametrize("objective", OBJECTIVES, ids=repr)
def test_both_paths_equal_the_formulas(objective: PolicyObjective):
    tensors = inputs()
    losses, gradient = oracle(objective, tensors)
    results = [op(path, objective, **tensors) for path in PATHS]
    for found in results:
        torch.testing.assert_close(found.sequences["loss"].double(), losses, rtol=2e-6, atol=2e-6)
        (found_gradient,) = torch.autograd.grad(2 * found.loss, tensors["logprob"])
        torch.testing.assert_close(found_gradient.double(), 2 * gradient, rtol=5e-6, atol=2e-6)
    for name in SUMS:
        torch.testing.assert_close(results[0].sequences[name], results[1].sequences[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("path", PATHS)
def test_values_outside_the_mask_may_be_anything(path: str):
    tensors = inputs()
    objective = PolicyObjective("clip", importance="masked", kl="k3", kl_coefficient=0.1)
    clean = op(path, objective, **tensors)
    mask = tensors["mask"]
    dirty = {n: t if n in ("mask", "cu_seqlens") else t.detach().where(mask, torch.nan) for n, t in tensors.items()}
    dirty["logprob"].requires_grad_()
    found = op(path, objective, **dirty)
    found.loss.backward()
    assert torch.equal(found.loss, clean.loss)
    assert not dirty["logprob"].grad[~mask].any()
    assert dirty["logprob"].grad.isfinite().all()


@pytest.mark.parametrize("path", PATHS)
def test_on_policy_clip_is_reinforce(path: str):
    """Without old log-probs rho is 1 in value and the gradient is that of A log p."""
    tensors = inputs()
    tensors.pop("old_logprob")
    found = op(path, PolicyObjective("clip"), **tensors)
    (gradient,) = torch.autograd.grad(found.loss, tensors["logprob"])
    torch.testing.assert_close(gradient, -tensors["advantage"].where(tensors["mask"], 0), rtol=1e-6, atol=1e-6)
    assert float(found.sequences["ratio"].sum()) == float(tensors["mask"].sum())
    assert not found.sequences["clipped"].any()


@pytest.mark.parametrize("path", PATHS)
def test_a_ratio_out_of_all_bounds_is_finite(path: str):
    tensors = inputs()
    tensors["old_logprob"] = tensors["old_logprob"] - 500
    tensors["reference_logprob"] = tensors["reference_logprob"] + 500
    objective = PolicyObjective("clip", importance="truncated", kl="k3", kl_coefficient=0.1)
    found = op(path, objective, **tensors)
    (gradient,) = torch.autograd.grad(found.loss, tensors["logprob"])
    assert found.loss.isfinite()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("path", PATHS)
def test_k3_keeps_its_digits_where_policy_and_reference_agree(path: str):
    """exp(d) - 1 - d is all cancellation near 0: at d = 1e-3 float32 would keep one digit of 5e-7."""
    d = torch.tensor([1e-3, -1e-3, 3e-5, 9e-3, 1.1e-2])
    logprob = torch.zeros(5, requires_grad=True)
    found = op(
        path,
        PolicyObjective("reinforce", kl="k3", kl_coefficient=1.0),
        logprob=logprob,
        advantage=torch.zeros(5),
        mask=torch.ones(5).bool(),
        cu_seqlens=torch.arange(6).int(),
        reference_logprob=d,
    )
    (gradient,) = torch.autograd.grad(found.loss, logprob)
    exact = d.double()
    torch.testing.assert_close(gradient.double(), -exact.expm1(), rtol=1e-5, atol=6e-8)
    if path == "triton":
        torch.testing.assert_close(found.sequences["loss"].double(), exact.expm1() - exact, rtol=1e-3, atol=0)


def test_a_sequence_has_the_same_bits_in_any_packing():
    tensors = inputs()
    objective = PolicyObjective("gspo", importance="masked", kl="k3", kl_coefficient=0.1)
    whole = op("triton", objective, **tensors)
    for index, (first, last) in enumerate(itertools.pairwise(CU_SEQLENS.tolist())):
        alone = {n: t[first:last] for n, t in tensors.items() if n != "cu_seqlens"}
        found = op("triton", objective, **alone, cu_seqlens=torch.tensor([0, last - first], dtype=torch.int32))
        assert all(torch.equal(found.sequences[name][0], whole.sequences[name][index]) for name in SUMS)


@pytest.mark.parametrize("path", PATHS)
def test_no_tokens(path: str):
    none = {name: tensor.detach()[:0] for name, tensor in inputs().items()}
    none |= {"logprob": torch.zeros(0, requires_grad=True), "cu_seqlens": torch.zeros(3, dtype=torch.int32)}
    found = op(path, PolicyObjective("clip", importance="masked", kl="k3", kl_coefficient=0.1), **none)
    found.loss.backward()
    assert found.loss == 0
    assert none["logprob"].grad.shape == (0,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"surrogate": "ppo"}, "surrogate must be one of"),
        ({"surrogate": "clip", "clip_low": 1.5}, "clip_low"),
        ({"surrogate": "clip", "importance_high": 0.5}, "importance_high"),
        ({"surrogate": "clip", "dual_clip": 0.5}, "above 1"),
        ({"surrogate": "cispo", "dual_clip": 3.0}, "clip and gspo"),
    ],
)
def test_wrong_objectives_are_named(change: dict, message: str):
    with pytest.raises(ValueError, match=message):
        PolicyObjective(**change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logprob": torch.zeros(4, 16)}, "logprob float32"),
        ({"logprob": torch.zeros(64).bfloat16()}, "logprob float32"),
        ({"mask": torch.ones(64)}, "mask bool"),
        ({"advantage": torch.zeros(63)}, r"advantage \[64\]"),
        ({"old_logprob": torch.zeros(63)}, r"old_logprob \[64\]"),
        ({"mask": torch.ones(64, device="meta").bool()}, "logprob and mask on one device"),
        ({"rollout_logprob": None}, "needs rollout_logprob"),
        ({"reference_logprob": None}, "needs reference_logprob"),
        ({"cu_seqlens": torch.tensor([0, 9, 5, 64])}, "ascending from 0 to 64"),
        ({"cu_seqlens": torch.tensor([0, 60])}, "ascending from 0 to 64"),
    ],
)
def test_wrong_arguments_are_named(change: dict, message: str):
    objective = PolicyObjective("clip", importance="masked", kl="k3", kl_coefficient=0.1)
    with pytest.raises(ValueError, match=message):
        policy_loss(**(inputs() | change), objective=objective)
