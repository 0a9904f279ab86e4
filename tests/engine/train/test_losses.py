from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from cascade_rl.engine.core.train_sequence import TrainSequence
from cascade_rl.engine.models.flops import SequenceCost
from cascade_rl.engine.train.losses import (
    Loss,
    PolicyLoss,
    SftLoss,
    group_advantages,
    loss_tokens,
    mismatch,
)
from cascade_rl.engine.train.packing import MicroBatch, pack
from cascade_rl.engine.train.planner import plan_micro_batches
from cascade_rl.kernels.linear_logprob import linear_logprob
from cascade_rl.kernels.policy_objective import PolicyObjective
from tests.kernels.oracles import PATHS, on_path

VOCAB, HIDDEN = 23, 8
LOGPROBS = ("old_logprob", "rollout_logprob", "reference_logprob")
COST = SequenceCost(per_token=1.0, per_pair=0.0)


def policy(**settings: object) -> PolicyLoss:
    return PolicyLoss(PolicyObjective(**settings))  # type: ignore[arg-type]


POLICY_LOSSES = [
    policy(importance="off"),
    policy(),
    policy(importance="masked"),
    policy(importance="masked", importance_low=0.9, importance_high=1.1, kl_coefficient=0.03),
    policy(surrogate="clip", dual_clip=3.0),
    policy(surrogate="cispo", importance="off"),
    policy(surrogate="gspo", clip_high=0.5, importance="masked", kl_estimator="k2", kl_coefficient=0.03),
]
ALL_LOSSES = [SftLoss(), *POLICY_LOSSES]


def sequences(count: int = 9) -> list[TrainSequence]:
    random = np.random.default_rng(0)
    drawn = []
    for _ in range(count):
        length = int(random.integers(2, 12))
        noise = {name: random.normal(size=length).astype(np.float32) for name in ("advantage", *LOGPROBS)}
        per_token = noise | {name: -3 + noise[name] for name in LOGPROBS} | {"share": np.ones(length, np.float32)}
        mask = random.random(length) < 0.6
        drawn.append(TrainSequence(random.integers(0, VOCAB, length + 1), mask, per_token=per_token))
    return drawn


def batch_of(mask: list[bool], **per_token: list[float]) -> MicroBatch:
    given = {"share": [1.0] * len(mask)} | per_token
    values = {name: np.array(value, np.float32) for name, value in given.items()}
    return pack([TrainSequence(np.arange(len(mask) + 1), np.array(mask), per_token=values)], [[0]])[0]


def loss_and_gradients(loss: Loss, batch: list[TrainSequence], token_budget: int) -> tuple[Tensor, ...]:
    """A toy model, embedding and head, through packing, log-prob op and loss, as the trainer does it."""
    torch.manual_seed(0)
    embedding = torch.randn(VOCAB, HIDDEN, requires_grad=True)
    head = torch.randn(VOCAB, HIDDEN, requires_grad=True)
    denominator = loss.denominator(batch)
    total = torch.zeros(())
    (plan,) = plan_micro_batches([len(s.loss_mask) for s in batch], token_budget, COST, segment_multiple=4)
    for micro_batch in pack(batch, plan, segment_multiple=4):
        hidden = embedding[micro_batch.input_ids[0]]
        logprob, entropy = linear_logprob(hidden, head, micro_batch.targets, micro_batch.temperature, vocab_size=VOCAB)
        part = loss(logprob, entropy, micro_batch)[0] / denominator
        part.backward()
        total = total + part.detach()
    return total, embedding.grad, head.grad


@pytest.mark.parametrize("loss", ALL_LOSSES, ids=repr)
def test_micro_batches_do_not_change_loss_or_gradients(loss: Loss):
    whole = loss_and_gradients(loss, sequences(), 256)
    for token_budget in (12, 24, 60):
        for found, expected in zip(loss_and_gradients(loss, sequences(), token_budget), whole, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("loss", ALL_LOSSES, ids=repr)
def test_a_sample_without_loss_tokens_changes_nothing(loss: Loss):
    batch = sequences()
    silent = replace(batch[0], loss_mask=np.zeros_like(batch[0].loss_mask))
    without, with_silent = (loss_and_gradients(loss, b, 256) for b in (batch, [*batch, silent]))
    for found, expected in zip(with_silent, without, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("loss", ALL_LOSSES, ids=repr)
def test_values_outside_the_mask_may_be_anything(loss: Loss):
    nan = float("nan")
    mask = [False, True, False, True]
    per_token = {name: [nan, -1.0, torch.inf, -1.5] for name in LOGPROBS}
    batch = batch_of(mask, advantage=[nan, 1.0, nan, -1.0], share=[nan, 1.0, nan, 1.0], **per_token)
    logprob = torch.tensor([nan, -1.1, -torch.inf, -1.4], requires_grad=True)
    total, metrics = loss(logprob, torch.full((4,), nan).where(~batch.loss_mask, 2.0), batch)
    total.backward()
    assert total.isfinite()
    assert all(metric.isfinite() for metric in metrics.values())
    assert logprob.grad[~batch.loss_mask].tolist() == [0.0, 0.0]
    assert logprob.grad[batch.loss_mask].isfinite().all()
    assert metrics["entropy"] == 4.0
    assert metrics["loss"] == total


@pytest.mark.parametrize("loss", ALL_LOSSES, ids=repr)
def test_a_micro_batch_without_loss_tokens_still_has_a_gradient(loss: Loss):
    zeros = {name: [0.0, 0.0] for name in ("advantage", *LOGPROBS)}
    batch = batch_of([False, False], **zeros)
    logprob = torch.zeros(2, requires_grad=True)
    total, _ = loss(logprob, torch.zeros(2), batch)
    total.backward()  # every rank must run backward, or the others wait for it
    assert float(total.detach()) == 0
    assert logprob.grad.tolist() == [0.0, 0.0]


def test_sft_is_the_mean_of_cross_entropy():
    batch = sequences()
    found, grad_embedding, _ = loss_and_gradients(SftLoss(), batch, 24)
    torch.manual_seed(0)
    embedding = torch.randn(VOCAB, HIDDEN).double().requires_grad_()
    head = torch.randn(VOCAB, HIDDEN).double()
    inputs, targets, mask = (
        torch.from_numpy(np.concatenate(arrays))
        for arrays in (
            [s.token_ids[:-1] for s in batch],
            [s.token_ids[1:] for s in batch],
            [s.loss_mask for s in batch],
        )
    )
    expected = torch.nn.functional.cross_entropy(embedding[inputs[mask]] @ head.T, targets[mask])
    expected.backward()
    torch.testing.assert_close(found.double(), expected.detach(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(grad_embedding.double(), embedding.grad, rtol=1e-5, atol=1e-6)


def importance_case() -> tuple[MicroBatch, Tensor]:
    """Ratios 1, 0.25, 4 and 1.5 of train to rollout, then one token that is no loss token."""
    ratios = torch.tensor([1.0, 0.25, 4.0, 1.5, 1.0])
    logprob = torch.tensor([-1.0, -2.0, -0.5, -1.5, -1.0])
    rollout = (logprob - ratios.log()).tolist()
    batch = batch_of([True] * 4 + [False], advantage=[1.0, -2.0, 0.5, 3.0, 7.0], rollout_logprob=rollout)
    return batch, logprob.requires_grad_()


@pytest.mark.parametrize(
    ("importance", "weights", "corrected"),
    [
        ("off", [1.0, 1.0, 1.0, 1.0], 0),
        ("truncated", [1.0, 0.25, 2.0, 1.5], 1),
        ("masked", [1.0, 0.0, 0.0, 1.5], 2),
    ],
)
def test_importance_weights(importance: str, weights: list[float], corrected: int):
    batch, logprob = importance_case()
    total, metrics = policy(importance=importance)(logprob, torch.zeros(5), batch)
    total.backward()
    advantages = [1.0, -2.0, 0.5, 3.0]
    expected = [-w * a for w, a in zip(weights, advantages, strict=True)]
    # The weight carries no gradient: d loss / d log p is -w A, not -w A (1 + log p).
    assert logprob.grad.tolist() == pytest.approx([*expected, 0.0], rel=1e-6)
    assert total.item() == pytest.approx(sum(e * p for e, p in zip(expected, [-1, -2, -0.5, -1.5], strict=True)))
    assert float(metrics["importance_weight"]) == pytest.approx(sum(weights))
    assert int(metrics["importance_corrected"]) == corrected


def test_a_ratio_that_would_overflow():
    batch = batch_of([True], advantage=[1.0], rollout_logprob=[-1000.0])
    logprob = torch.zeros(1, requires_grad=True)
    policy()(logprob, torch.zeros(1), batch)[0].backward()
    assert logprob.grad.tolist() == [-2.0]
    policy(importance="masked")(logprob, torch.zeros(1), batch)[0].backward()
    assert logprob.grad.tolist() == [-2.0]


def test_kl_term_reaches_the_gradient():
    batch = batch_of([True, True, False], advantage=[0.0] * 3, reference_logprob=[-1.0, -2.0, -9.0])
    logprob = torch.tensor([-1.5, -1.0, -1.0], requires_grad=True)
    total, metrics = policy(importance="off", kl_coefficient=0.03)(logprob, torch.zeros(3), batch)
    total.backward()
    d = np.array([0.5, -1.0])
    expected = np.exp(d) - 1 - d
    assert float(metrics["reference_kl"]) == pytest.approx(expected.sum(), rel=1e-6)
    assert total.item() == pytest.approx(0.03 * expected.sum(), rel=1e-6)
    assert logprob.grad.tolist() == pytest.approx([*(0.03 * (1 - np.exp(d))), 0.0], rel=1e-6)


def float64_oracle(batch: MicroBatch, logprob: Tensor) -> tuple[float, dict[str, float], np.ndarray]:
    """Loss, metrics and gradient of the papers' form with a KL term, one loss token after another."""
    loss, metrics = 0.0, dict.fromkeys(("importance_weight", "importance_corrected", "reference_kl"), 0.0)
    gradient = np.zeros(len(logprob))
    for t in np.flatnonzero(batch.loss_mask.numpy()):
        own, advantage, rollout, reference = (
            float(values[t]) for values in (logprob, *(batch.per_token[name] for name in ("advantage", *LOGPROBS[1:])))
        )
        ratio, d = np.exp(own - rollout), reference - own
        weight, kl = min(ratio, 2.0), np.exp(d) - 1 - d
        loss += 0.03 * kl - weight * advantage * own
        gradient[t] = 0.03 * (1 - np.exp(d)) - weight * advantage
        for name, value in zip(metrics, (weight, weight != ratio, kl), strict=True):
            metrics[name] += float(value)
    return loss, metrics, gradient


@pytest.mark.parametrize("path", PATHS)
def test_the_default_form_equals_a_float64_oracle(path: str):
    drawn = sequences(40)
    (batch,) = pack(drawn, [range(len(drawn))])
    logprob = (-3 + torch.randn(len(batch.targets))).requires_grad_()
    with on_path(path):
        total, found = policy(kl_coefficient=0.03)(logprob, torch.ones_like(logprob), batch)
        total.backward()
    loss, metrics, gradient = float64_oracle(batch, logprob.detach())
    assert 0.1 < metrics["importance_corrected"] / loss_tokens(drawn) < 0.9
    assert list(found) == ["loss", "entropy", *metrics]
    assert float(found["loss"]) == total.item() == pytest.approx(loss, rel=1e-5)
    assert float(found["entropy"]) == loss_tokens(drawn)
    assert {name: float(found[name]) for name in metrics} == pytest.approx(metrics, rel=1e-5)
    np.testing.assert_allclose(logprob.grad.numpy(), gradient, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("loss", POLICY_LOSSES, ids=repr)
def test_the_triton_path_gives_the_same_loss_and_gradients(loss: PolicyLoss):
    """Through `PolicyLoss` on CPU tensors; the log-probs come from the torch path of their own op."""
    drawn = sequences()
    (batch,) = pack(drawn, [range(len(drawn))], segment_multiple=4)
    answers = []
    for path in PATHS:
        logprob = (-3 + torch.linspace(-1, 1, len(batch.targets))).requires_grad_()
        with on_path(path):
            total, metrics = loss(logprob, torch.zeros_like(logprob), batch)
            total.backward()
        answers.append([total.detach(), logprob.grad, *(value.float() for value in metrics.values())])
    for found, expected in zip(*answers, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_the_ratio_of_gspo_is_of_the_sequence():
    """Two sequences: of the first the mean log ratio over loss tokens is log 2, of the second log 0.5."""
    ratios, mask = torch.tensor([4.0, 1.0, 9.0, 0.25, 1.0]), np.array([True, True, False, True, True])
    logprob = torch.full((5,), -1.0)
    old, advantage = (logprob - ratios.log()).numpy(), np.array([1, -1, 5, 1, -1], np.float32)
    halves = [slice(0, 3), slice(3, 5)]
    drawn = [
        TrainSequence(
            np.arange(len(mask[half]) + 1),
            mask[half],
            per_token={"old_logprob": old[half], "advantage": advantage[half], "share": np.ones_like(old[half])},
        )
        for half in halves
    ]
    (batch,) = pack(drawn, [[0, 1]])
    logprob.requires_grad_()
    total, metrics = policy(surrogate="gspo", importance="off")(logprob, torch.zeros(5), batch)
    total.backward()
    assert total.item() == pytest.approx(-(1.2 - 2.0 + 0.5 - 0.8))  # clipped to [0.8, 1.2], the worse of the two
    assert logprob.grad.tolist() == pytest.approx([0.0, 2.0, 0.0, -0.5, 0.0])
    assert metrics["clip_fraction"] == 2


def test_grpo_gradient_is_the_policy_gradient():
    """d/d theta of the expected reward of a softmax policy, by finite differences, over all outcomes."""
    theta = torch.tensor([[0.3, -0.2, 0.5]], dtype=torch.float64)
    rewards = torch.tensor([1.0, 0.0, 0.25], dtype=torch.float64)

    def expected_reward(theta: Tensor) -> float:
        return float((theta.softmax(-1)[0] * rewards).sum())

    step = 1e-6
    difference = [
        (expected_reward(theta + step * unit) - expected_reward(theta - step * unit)) / (2 * step)
        for unit in torch.eye(3, dtype=torch.float64)
    ]
    # Every outcome once, its advantage weighted by its probability: the sum is the expectation.
    weight = theta.requires_grad_()
    probability = theta.detach().softmax(-1)[0]
    hidden = torch.eye(1, dtype=torch.float64).expand(3, 1)
    logprob, entropy = linear_logprob(hidden, weight.T, torch.arange(3), 1.0, vocab_size=3)
    batch = batch_of([True] * 3, advantage=(probability * rewards).tolist())
    policy(importance="off")(logprob, entropy, batch)[0].backward()
    assert weight.grad[0].tolist() == pytest.approx([-d for d in difference], abs=1e-7)


def test_denominator_counts_loss_tokens_of_the_global_batch():
    batch = sequences()
    expected = sum(s.loss_mask.sum() for s in batch)
    assert SftLoss().denominator(batch) == policy().denominator(batch) == expected


def test_advantages_of_a_group():
    rewards = np.array([1.0, 0.0, 0.0, 0.5])
    deviation = rewards - 0.375
    expected = deviation / (np.sqrt((deviation**2).sum() / 3) + 1e-6)
    found = group_advantages(rewards, np.ones(4, bool))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_allclose(group_advantages(10 * rewards - 3, np.ones(4, bool)), expected, rtol=1e-5)


def test_invalid_samples_leave_baseline_and_deviation():
    rewards = np.array([1.0, np.nan, 0.0, 100.0, 0.5])
    valid = np.array([True, False, True, False, True])
    found = group_advantages(rewards, valid)
    np.testing.assert_array_equal(found[valid], group_advantages(rewards[valid], np.ones(3, bool)))
    np.testing.assert_array_equal(found[~valid], [0, 0])


@pytest.mark.parametrize(
    ("rewards", "valid"),
    [
        ([0.1, 0.1, 0.1], [True, True, True]),  # their mean is not 0.1 in floating point
        ([1.0, 0.0, 0.0], [True, False, False]),
        ([1.0, 0.0, 0.0], [False, False, False]),
        ([1.0, 1.0, 0.0], [True, True, False]),
    ],
)
def test_groups_without_a_signal(rewards: list[float], valid: list[bool]):
    assert group_advantages(np.array(rewards), np.array(valid)).tolist() == [0.0, 0.0, 0.0]


def test_a_reward_that_is_not_finite():
    with pytest.raises(ValueError, match="finite"):
        group_advantages(np.array([1.0, np.nan]), np.ones(2, bool))


def test_mismatch():
    train, rollout = np.array([-1.0, -2.0, np.nan]), np.array([-1.1, -1.7, -5.0])
    found = mismatch(train, rollout, np.array([True, True, False]))
    assert found == {
        "tme": pytest.approx((np.exp(0.1) + np.exp(0.3)) / 2),
        "max_gap": pytest.approx(0.3),
        "kl": pytest.approx((np.exp(0.1) - 1.1 + np.exp(-0.3) - 0.7) / 2),
    }
    same = mismatch(rollout, rollout, np.ones(3, bool))
    assert same == {"tme": 1.0, "max_gap": 0.0, "kl": 0.0}
    with pytest.raises(ValueError, match="loss token"):
        mismatch(train, rollout, np.zeros(3, bool))
