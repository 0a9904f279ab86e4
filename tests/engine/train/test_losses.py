from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.train_sequence import TrainSequence
from cascade_rl.engine.models.flops import SequenceCost
from cascade_rl.engine.train.losses import GrpoLoss, Loss, SftLoss, group_advantages, k3, mismatch
from cascade_rl.engine.train.packing import MicroBatch, pack
from cascade_rl.engine.train.planner import plan_micro_batches
from cascade_rl.kernels.linear_logprob import linear_logprob

VOCAB, HIDDEN = 23, 8
COST = SequenceCost(per_token=1.0, per_pair=0.0)
ALL_LOSSES = [
    SftLoss(),
    GrpoLoss("off"),
    GrpoLoss("truncated"),
    GrpoLoss("masked"),
    GrpoLoss("masked", low=0.9, high=1.1, kl_coefficient=0.03),
]


def sequences(count: int = 9) -> list[TrainSequence]:
    random = np.random.default_rng(0)
    drawn = []
    for _ in range(count):
        length = int(random.integers(2, 12))
        noise = {
            name: random.normal(size=length).astype(np.float32)
            for name in ("advantage", "rollout_logprob", "reference_logprob")
        }
        per_token = noise | {
            "rollout_logprob": -3 + noise["rollout_logprob"],
            "reference_logprob": -3 + noise["reference_logprob"],
        }
        mask = random.random(length) < 0.6
        drawn.append(TrainSequence(random.integers(0, VOCAB, length + 1), mask, per_token=per_token))
    return drawn


def batch_of(mask: list[bool], **per_token: list[float]) -> MicroBatch:
    values = {name: np.array(value, np.float32) for name, value in per_token.items()}
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
    per_token = {name: [nan, -1.0, torch.inf, -1.5] for name in ("rollout_logprob", "reference_logprob")}
    batch = batch_of(mask, advantage=[nan, 1.0, nan, -1.0], **per_token)
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
    zeros = {name: [0.0, 0.0] for name in ("advantage", "rollout_logprob", "reference_logprob")}
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
    total, metrics = GrpoLoss(importance)(logprob, torch.zeros(5), batch)
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
    GrpoLoss("truncated")(logprob, torch.zeros(1), batch)[0].backward()
    assert logprob.grad.tolist() == [-2.0]
    GrpoLoss("masked")(logprob, torch.zeros(1), batch)[0].backward()
    assert logprob.grad.tolist() == [-2.0]


def test_kl_term_reaches_the_gradient():
    batch = batch_of([True, True, False], advantage=[0.0] * 3, reference_logprob=[-1.0, -2.0, -9.0])
    logprob = torch.tensor([-1.5, -1.0, -1.0], requires_grad=True)
    total, metrics = GrpoLoss("off", kl_coefficient=0.03)(logprob, torch.zeros(3), batch)
    total.backward()
    d = np.array([0.5, -1.0])
    expected = np.exp(d) - 1 - d
    assert float(metrics["reference_kl"]) == pytest.approx(expected.sum(), rel=1e-6)
    assert total.item() == pytest.approx(0.03 * expected.sum(), rel=1e-6)
    assert logprob.grad.tolist() == pytest.approx([*(0.03 * (1 - np.exp(d))), 0.0], rel=1e-6)


def test_k3_estimates_the_kl_divergence():
    p, q = (
        torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64),
        torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64),
    )
    assert float((p * k3((q / p).log())).sum()) == pytest.approx(float((p * (p / q).log()).sum()))
    assert k3(torch.tensor([1e4, -1e4])).isfinite().all()


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
    GrpoLoss("off")(logprob, entropy, batch)[0].backward()
    assert weight.grad[0].tolist() == pytest.approx([-d for d in difference], abs=1e-7)


def test_denominator_counts_loss_tokens_of_the_global_batch():
    batch = sequences()
    expected = sum(s.loss_mask.sum() for s in batch)
    assert SftLoss().denominator(batch) == GrpoLoss("off").denominator(batch) == expected


@pytest.mark.parametrize("settings", [{"importance": "icepop"}, {"low": 1.5}, {"high": 0.9}, {"low": -0.1}])
def test_wrong_settings(settings: dict):
    with pytest.raises(UserError, match="found"):
        GrpoLoss(**({"importance": "masked"} | settings))


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
