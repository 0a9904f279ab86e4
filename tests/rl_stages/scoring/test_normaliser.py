"""What the loss of a step is a mean over, through `PolicyLoss` and against float64 by hand."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from cascade_rl.engine.core.train_sequence import TrainSequence
from cascade_rl.engine.train.losses import PolicyLoss
from cascade_rl.engine.train.packing import pack
from cascade_rl.kernels.policy_objective import PolicyObjective
from cascade_rl.rl_stages.config.grpo_stage import Normaliser
from cascade_rl.rl_stages.scoring.normaliser import with_shares

PROMPT = 3  # tokens, which are not learned
LOSS = PolicyLoss(PolicyObjective(importance="off", kl_coefficient=0.5))


def answer(tokens: int, advantage: float = 1.0, *, trained: bool = True) -> TrainSequence:
    length = PROMPT + tokens
    mask = (np.arange(length - 1) >= PROMPT - 1) & trained
    values = {"advantage": advantage, "reference_logprob": -1.0}
    per_token = {name: np.full(length - 1, value, np.float32) for name, value in values.items()}
    return TrainSequence(np.zeros(length, np.int64), mask, per_token=per_token)


def weights(answers: Sequence[TrainSequence], normaliser: Normaliser, group: int) -> list[float]:
    """The weight of each answer in the step's loss: -d loss / d log-prob, summed over its tokens."""
    given = with_shares(answers, normaliser, group)
    (batch,) = pack(given, [range(len(given))])
    logprob = torch.full((len(batch.targets),), -1.0, requires_grad=True)
    (LOSS(logprob, torch.zeros_like(logprob), batch)[0] / LOSS.denominator(given)).backward()
    assert logprob.grad is not None
    parts = (-logprob.grad.double()).split([len(sequence.loss_mask) for sequence in given])
    return [float(part.sum()) for part in parts]


@pytest.mark.parametrize(
    ("normaliser", "expected"),
    [("prompt", [0.5, 0.5]), ("sequence", [0.5, 0.5]), ("batch", [100 / 10_100, 10_000 / 10_100])],
)
def test_groups_of_short_and_of_long_answers(normaliser: Normaliser, expected: list[float]) -> None:
    """One group with answers of 100 tokens, one with answers of 10,000 (arXiv 2512.13607, Eq. 1)."""
    found = weights([answer(100), answer(100), answer(10_000), answer(10_000)], normaliser, group=2)
    assert [found[0] + found[1], found[2] + found[3]] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("normaliser", "expected"),
    [
        ("prompt", [0.5 * 2 / 8, 0.5 * 6 / 8, 0.5 * 12 / 16, 0.5 * 4 / 16]),
        ("sequence", [0.25, 0.25, 0.25, 0.25]),
        ("batch", [2 / 24, 6 / 24, 12 / 24, 4 / 24]),
    ],
)
def test_answers_of_one_group(normaliser: Normaliser, expected: list[float]) -> None:
    found = weights([answer(2), answer(6), answer(12), answer(4)], normaliser, group=2)
    assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("normaliser", "expected"),
    [
        ("prompt", [0, 0, 0, 0.5, 0.5 * 3 / 4, 0.5 * 1 / 4]),
        ("sequence", [0, 0, 0, 1 / 3, 1 / 3, 1 / 3]),
        ("batch", [0, 0, 0, 12 / 16, 3 / 16, 1 / 16]),
    ],
)
def test_untrained_answers_do_not_count(normaliser: Normaliser, expected: list[float]) -> None:
    """Of the first prompt no answer is trained on, of the second one: the mean is over the other two prompts."""
    answers = [answer(5, trained=False), answer(7, trained=False), answer(9, trained=False)]
    answers += [answer(12), answer(3), answer(1)]
    assert weights(answers, normaliser, group=2) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("normaliser", ["prompt", "sequence", "batch"])
def test_loss_and_metrics_equal_float64_by_hand(normaliser: Normaliser) -> None:
    random = np.random.default_rng(0)
    lengths, advantages = [3, 8, 5, 1], [1.5, -0.5, 0.25, -2.0]
    answers = with_shares([answer(*pair) for pair in zip(lengths, advantages, strict=True)], normaliser, group=2)
    (batch,) = pack(answers, [range(4)])
    logprob = torch.from_numpy(-random.random(len(batch.targets)).astype(np.float32))
    loss, sums = LOSS(logprob, torch.ones_like(logprob), batch)
    own = [part[mask] for part, mask in zip(
        logprob.double().split([len(s.loss_mask) for s in answers]), (torch.from_numpy(s.loss_mask) for s in answers),
        strict=True)]  # fmt: skip
    kl = [(-1.0 - x).exp() - 1 - (-1.0 - x) for x in own]
    per_answer = [float((-a * x + 0.5 * k).sum()) for a, x, k in zip(advantages, own, kl, strict=True)]
    divisors = {"prompt": [2 * 11, 2 * 11, 2 * 6, 2 * 6], "sequence": [12, 32, 20, 4], "batch": [17] * 4}[normaliser]
    expected = sum(total / divisor for total, divisor in zip(per_answer, divisors, strict=True))
    mean_kl = sum(float(k.sum()) / divisor for k, divisor in zip(kl, divisors, strict=True))
    denominator = LOSS.denominator(answers)
    assert float(loss) / denominator == pytest.approx(expected, rel=1e-6)
    assert float(sums["reference_kl"]) / denominator == pytest.approx(mean_kl, rel=1e-5)
    assert float(sums["entropy"]) / denominator == pytest.approx(1.0, rel=1e-6)


def test_the_batch_mean_keeps_its_bits() -> None:
    answers = with_shares([answer(n) for n in (3, 8, 5, 1)], "batch", group=2)
    assert all(set(sequence.per_token["share"]) == {1.0} for sequence in answers)
    assert LOSS.denominator(answers) == 17.0
