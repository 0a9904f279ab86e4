"""Both paths of `policy_loss` against formulas written per token in float64."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from cascade_rl.kernels.policy_loss import kl_estimate, policy_loss
from cascade_rl.kernels.policy_objective import PolicyObjective
from tests.kernels.oracles import PATHS, on_path

TOKENS, TWO_BLOCKS = 150, 1100
SEQUENCES = 4
SURROGATES, IMPORTANCES = ("reinforce", "clip", "cispo", "gspo"), ("off", "truncated", "masked")
KL_TERMS: list[dict] = [{}, *({"kl_estimator": name, "kl_coefficient": 0.3} for name in ("k1", "k2", "k3"))]
OBJECTIVES = [
    PolicyObjective(surrogate, clip_high=0.28, dual_clip=dual, importance=importance, **kl)
    for surrogate, importance, kl in itertools.product(SURROGATES, IMPORTANCES, KL_TERMS)
    for dual in ([None, 3.0] if surrogate in ("clip", "gspo") else [None])
]
EVERYTHING = PolicyObjective("clip", dual_clip=3.0, importance="masked", kl_coefficient=0.1)

Values = dict[str, Tensor]


def inputs(tokens: int = TOKENS) -> tuple[Tensor, Values]:
    """Log-probs, and values for an objective that reads all of them."""
    logprob = -3 * torch.rand(tokens)
    near = {name: logprob + 0.4 * torch.randn(tokens) for name in ("old", "rollout", "reference")}
    near["old"][2::50] -= 3.0  # far outside every clip
    near["old"][30::50] += 3.0
    values = {f"{name}_logprob": value for name, value in near.items()}
    values |= {"advantage": torch.randn(tokens), "share": 0.1 + torch.rand(tokens)}
    return logprob.requires_grad_(), values | {"sequence_log_ratio": sequence_log_ratio(logprob, values["old_logprob"])}


def sequence_log_ratio(logprob: Tensor, old: Tensor) -> Tensor:
    """Log ratios of sequences whose means are far apart, so that some are clipped."""
    parts = (logprob.detach() - old).tensor_split(SEQUENCES)
    means = [part.mean() + shift for part, shift in zip(parts, (0.0, 1.2, -0.5, 0.1), strict=True) if len(part)]
    return torch.cat([mean.expand(len(part)) for mean, part in zip(means, parts, strict=False)] or [old])


def found(
    path: str, objective: PolicyObjective, logprob: Tensor, values: Values
) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """Loss, sums, and the gradient of twice the loss."""
    with on_path(path):
        loss, sums = policy_loss(logprob, objective, values)
        (gradient,) = torch.autograd.grad(2 * loss, logprob)
    return loss.detach(), sums, gradient


def one_token(o: PolicyObjective, lp: Tensor, rho: Tensor, a: float, old: float, rollout: float, ref: float) -> Tensor:
    """The loss of one token, by the formulas of the papers."""
    low, high = 1 - o.clip_low, 1 + o.clip_high
    if o.surrogate == "reinforce":
        s, old = a * lp, float(lp.detach())
    elif o.surrogate == "cispo":
        s = min(max(float(rho.detach()), low), high) * a * lp
    else:
        s = min(rho * a, min(max(rho, torch.tensor(low)), torch.tensor(high)) * a)
        if o.dual_clip and a < 0:
            s = max(s, torch.tensor(o.dual_clip * a))
    v = math.exp(old - rollout)
    w = {"off": 1.0, "truncated": min(v, o.importance_high),
         "masked": v if o.importance_low <= v <= o.importance_high else 0.0}[o.importance]  # fmt: skip
    d = ref - lp
    kl = {"k1": -d, "k2": d**2 / 2, "k3": d.exp() - 1 - d}[o.kl_estimator]
    return o.kl_coefficient * kl - w * s


def oracle(o: PolicyObjective, logprob: Tensor, values: Values) -> tuple[Tensor, Tensor]:
    """Loss, and the gradient of twice the loss."""
    lp = logprob.detach().double().requires_grad_()
    total = lp.new_zeros(())
    names = ("share", "advantage", "old_logprob", "rollout_logprob", "reference_logprob", "sequence_log_ratio")
    for own, (share, *rest, mean) in zip(lp, zip(*(values[name].tolist() for name in names), strict=True), strict=True):
        log_ratio = mean + own - own.detach() if o.surrogate == "gspo" else own - rest[1]
        total = total + share * one_token(o, own, log_ratio.exp(), *rest)
    return total.detach(), torch.autograd.grad(2 * total, lp)[0]


@pytest.mark.parametrize("objective", OBJECTIVES, ids=repr)
def test_both_paths_equal_the_formulas(objective: PolicyObjective):
    logprob, values = inputs()
    loss, gradient = oracle(objective, logprob, values)
    (torch_loss, torch_sums, torch_gradient), (loss_, sums, gradient_) = (
        found(path, objective, logprob, values) for path in PATHS
    )
    for mine, its_gradient in ((torch_loss, torch_gradient), (loss_, gradient_)):
        torch.testing.assert_close(mine.double(), loss, rtol=2e-6, atol=2e-5)  # its terms have both signs
        torch.testing.assert_close(its_gradient.double(), gradient, rtol=5e-6, atol=2e-6)
    assert list(sums) == list(torch_sums)
    for name, total in sums.items():
        torch.testing.assert_close(total, torch_sums[name].float(), rtol=2e-6, atol=2e-5)
    if objective.clips:
        assert 0.05 < float(sums["clip_fraction"]) / TOKENS < 0.95
    if objective.importance != "off":
        assert 0.01 < float(sums["importance_corrected"]) / TOKENS < 0.5


def test_the_sums_are_those_that_the_objective_has():
    logprob, values = inputs()
    assert list(found("torch", PolicyObjective(), logprob, values)[1]) == ["importance_weight", "importance_corrected"]
    everything = ["importance_weight", "importance_corrected", "reference_kl", "clip_fraction"]
    assert list(found("torch", EVERYTHING, logprob, values)[1]) == everything


@pytest.mark.parametrize("path", PATHS)
def test_on_policy_clip_is_reinforce(path: str):
    """If the policy equals the old policy, rho is 1 and the gradient is that of A log p."""
    logprob, values = inputs()
    values["old_logprob"] = logprob.detach()
    _, sums, gradient = found(path, PolicyObjective("clip", importance="off"), logprob, values)
    torch.testing.assert_close(gradient, -2 * values["share"] * values["advantage"], rtol=1e-6, atol=1e-6)
    assert sums["clip_fraction"] == 0


@pytest.mark.parametrize("path", PATHS)
def test_a_dropped_token_is_not_clipped(path: str):
    logprob, values = inputs()
    values["rollout_logprob"] = values["old_logprob"] - 5
    _, sums, gradient = found(path, PolicyObjective("clip", importance="masked"), logprob, values)
    assert float(sums["importance_corrected"]) == pytest.approx(float(values["share"].sum()))
    assert sums["clip_fraction"] == 0
    assert not gradient.any()


@pytest.mark.parametrize("surrogate", SURROGATES)
@pytest.mark.parametrize("path", PATHS)
def test_a_ratio_out_of_all_bounds_is_finite(path: str, surrogate: str):
    logprob, values = inputs()
    values["old_logprob"] = values["old_logprob"] - 500
    values["rollout_logprob"] = values["rollout_logprob"] - 1500
    values["reference_logprob"] = values["reference_logprob"] + 500
    values["sequence_log_ratio"] = values["sequence_log_ratio"] + 500
    loss, sums, gradient = found(path, PolicyObjective(surrogate, kl_coefficient=0.1), logprob, values)
    assert loss.isfinite()
    assert gradient.isfinite().all()
    assert all(total.isfinite() for total in sums.values())


def test_k3_estimates_the_kl_divergence():
    p, q = torch.tensor([0.5, 0.3, 0.2]).double(), torch.tensor([0.2, 0.2, 0.6]).double()
    exact = float((p * (p / q).log()).sum())
    for estimator in ("k1", "k3"):
        assert float((p * kl_estimate((q / p).log(), estimator)).sum()) == pytest.approx(exact)


@pytest.mark.parametrize("path", PATHS)
def test_k3_keeps_its_digits_where_policy_and_reference_agree(path: str):
    """exp(d) - 1 - d cancels near 0: at d = 1e-3, where it is 5e-7, float32 would keep one digit."""
    d = torch.tensor([1e-3, -1e-3, 3e-5, 9e-3, 1.1e-2])
    exact = d.double()
    for i in range(len(d)):
        objective = PolicyObjective(importance="off", kl_coefficient=1.0)
        values = {"advantage": torch.zeros(1), "share": torch.ones(1), "reference_logprob": d[i : i + 1]}
        loss, _, gradient = found(path, objective, torch.zeros(1, requires_grad=True), values)
        torch.testing.assert_close(gradient.double() / 2, -exact[i : i + 1].expm1(), rtol=1e-5, atol=6e-8)
        if path == "triton":
            torch.testing.assert_close(loss.double(), exact[i].expm1() - exact[i], rtol=1e-3, atol=0)


def test_the_gradient_of_a_token_has_the_same_bits_in_any_batch():
    logprob, values = inputs(TWO_BLOCKS)
    loss, sums, whole = found("triton", EVERYTHING, logprob, values)
    torch_loss, torch_sums, _ = found("torch", EVERYTHING, logprob, values)
    torch.testing.assert_close(loss, torch_loss, rtol=1e-5, atol=1e-4)
    for name, total in sums.items():
        torch.testing.assert_close(total, torch_sums[name].float(), rtol=1e-5, atol=1e-4)
    for rows in (slice(0, 1), slice(7, 1040), slice(1024, None)):
        part = logprob.detach()[rows].requires_grad_()
        _, _, gradient = found("triton", EVERYTHING, part, {name: value[rows] for name, value in values.items()})
        assert torch.equal(gradient, whole[rows])


@pytest.mark.parametrize("path", PATHS)
def test_no_tokens(path: str):
    logprob, values = inputs(0)
    loss, sums, gradient = found(path, EVERYTHING, logprob, values)
    assert loss == 0
    assert not any(sums.values())
    assert gradient.shape == (0,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"surrogate": "ppo"}, "surrogate: expected one of reinforce, clip, cispo, gspo, found 'ppo'"),
        ({"importance": "icepop"}, "importance: expected one of truncated, masked, off, found 'icepop'"),
        ({"kl_estimator": "k4"}, "kl_estimator: expected one of k1, k2, k3, found 'k4'"),
        ({"clip_low": 1.5}, r"clip_low: expected a value in \[0, 1\], found 1.5"),
        ({"clip_high": -0.1}, "clip_high: expected 0 or more, found -0.1"),
        ({"clip_high": math.nan}, "clip_high: expected 0 or more, found nan"),
        ({"importance_low": 1.5}, r"importance_low: expected a value in \[0, 1\], found 1.5"),
        ({"importance_high": 0.9}, "importance_high: expected 1 or more, found 0.9"),
        ({"kl_coefficient": -1.0}, "kl_coefficient: expected 0 or more, found -1.0"),
        ({"surrogate": "clip", "dual_clip": 1.0}, "dual_clip: expected more than 1, found 1.0"),
        ({"surrogate": "cispo", "dual_clip": 3.0}, "dual_clip: expected none unless the surrogate is clip or gspo"),
    ],
)
def test_wrong_objectives_are_named(change: dict, message: str):
    with pytest.raises(ValueError, match=message):
        PolicyObjective(**change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logprob": torch.zeros(4, 16)}, "logprob float32"),
        ({"logprob": torch.zeros(TOKENS).bfloat16()}, "logprob float32"),
        ({"advantage": torch.zeros(63)}, r"expected advantage \[150\], found \[63\]"),
        ({"advantage": torch.zeros(TOKENS, device="meta")}, "logprob and advantage on one device"),
        ({"share": None}, "needs share, found none"),
        ({"old_logprob": None}, "needs old_logprob, found none"),
        ({"rollout_logprob": None}, "needs rollout_logprob, found none"),
        ({"reference_logprob": None}, "needs reference_logprob, found none"),
        ({"sequence_log_ratio": None}, "needs sequence_log_ratio, found none"),
    ],
)
def test_wrong_arguments_are_named(change: dict, message: str):
    logprob, values = inputs()
    given = {name: value for name, value in ({"logprob": logprob} | values | change).items() if value is not None}
    with pytest.raises(ValueError, match=message):
        policy_loss(given.pop("logprob"), PolicyObjective("gspo", kl_coefficient=0.1), given)
