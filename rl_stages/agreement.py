"""Checks in each on-policy step that trainer and sampler have the same policy.

Rank 0 has the log-probs of both. On a rank without sequences there is nothing to compare; it ends when rank 0 does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from cascade_rl.engine.core.settings import RolloutConfig
from cascade_rl.engine.core.train_sequence import TrainSequence
from cascade_rl.engine.train.losses import mismatch
from cascade_rl.rl_stages.config.stage import OnPolicyStage
from cascade_rl.rl_stages.scoring.age import ages, told
from cascade_rl.rl_stages.scoring.scored_sample import Sample


class Mismatch(RuntimeError):
    """Trainer and sampler disagree on the log-probs of the same tokens by more than the bound."""


def require_agreement(
    stage: OnPolicyStage,
    samples: Sequence[Sample],
    sequences: list[TrainSequence],
    train_logprobs: list[np.ndarray],
    step: int,
) -> dict[str, float]:
    """The gap between the log-probs of trainer, before the update, and sampler over the loss tokens (see `mismatch`).

    Tokens of samples wholly from the weights of the step must have the same log-probs on both sides. For the others the
    policy has moved in between, or states that they read were computed by older weights or experts: theirs are
    `stale_`, and come with the tokens' age.

    Raises Mismatch if a mean is above the stage's bound, before an update can harm the weights."""
    if not sequences:
        return {}
    mask = np.concatenate([sequence.loss_mask for sequence in sequences])
    rollout = np.concatenate([sequence.per_token["rollout_logprob"] for sequence in sequences])
    aged = ages(samples, step)
    train = np.concatenate(train_logprobs)
    oldest = np.concatenate([np.full_like(own, own.max()) for own in aged])
    fresh, stale = mask & (oldest == 0), mask & (oldest != 0)
    found: dict[str, float] = {}
    if fresh.any() or not mask.any():
        found |= mismatch(train, rollout, fresh)
        _require_equal(found, stage.tme_bound, step)
    if stale.any():
        moved = np.abs(train - rollout)[stale]
        found |= {"stale_gap": float(moved.mean(dtype=np.float64)), "stale_max_gap": float(moved.max())}
        found |= told(aged, [sequence.loss_mask for sequence in sequences])
        _require_near(found, stage.stale_gap_bound, step)
    return found


def _require_equal(found: Mapping[str, float], bound: float, step: int) -> None:
    if not found["tme"] <= bound:
        raise Mismatch(
            f"step {step + 1}: mean of exp|log p_train - log p_rollout| is {found['tme']:.6f}, expected at most "
            f"{bound} (largest gap {found['max_gap']:.2e}). The weights are unchanged. If the sampler runs in lower "
            "precision, raise tme_bound; otherwise the refit or the replayed routes are wrong"
        )


def _require_near(found: Mapping[str, float], bound: float, step: int) -> None:
    """A mean of nats: one step may move a single token by ten of them, whose exponential would be all of the mean."""
    if not found["stale_gap"] <= bound:
        raise Mismatch(
            f"step {step + 1}: mean of |log p_train - log p_rollout| over the tokens of older weights is "
            f"{found['stale_gap']:.3f} nats, expected at most {bound} (largest gap {found['stale_max_gap']:.2e}). The "
            "weights are unchanged. Steps move the policy too far for samples of this age: lower the lr, or raise "
            "stale_gap_bound"
        )


def mask_disagreeing(
    sequences: list[TrainSequence], train_logprobs: list[np.ndarray], bound: float | None, step: int
) -> tuple[list[TrainSequence], dict[str, float]]:
    """Masks the sequences whose own mean of exp|log p_train - log p_rollout| is above the bound, and returns the share
    of them as a metric (NeMo-RL's seq_logprob_error_threshold).

    Masked sequences have no loss token, so `require_agreement` does not see them. A bound of None masks nothing. Raises
    Mismatch if no sequence is left."""
    if bound is None or not sequences:
        return sequences, {}
    agrees = [_error(*pair) <= bound for pair in zip(sequences, train_logprobs, strict=True)]
    masked = [
        replace(sequence, loss_mask=sequence.loss_mask & agreeing)
        for sequence, agreeing in zip(sequences, agrees, strict=True)
    ]
    if not any(sequence.loss_mask.any() for sequence in masked):
        raise Mismatch(
            f"step {step + 1}: expected sequences whose mean of exp|log p_train - log p_rollout| is at most {bound}, "
            "found none (sequence_error_bound). The refit or the replayed routes are wrong"
        )
    return masked, {"disagreeing_fraction": 1 - sum(agrees) / len(agrees)}


def _error(sequence: TrainSequence, train_logprobs: np.ndarray) -> float:
    """The mean gap of one sequence; 1.0, which means none, if it has no loss token."""
    if not sequence.loss_mask.any():
        return 1.0
    return mismatch(train_logprobs, sequence.per_token["rollout_logprob"], sequence.loss_mask)["tme"]


def require_replay(fraction: float, step: int, rollout: RolloutConfig) -> None:
    """Raises Mismatch unless all of the sampler's expert choices were replayed, if `rollout` says that they are."""
    if rollout.replay_routes and fraction != 1.0:
        raise Mismatch(
            f"step {step + 1}: {fraction:.4f} of the experts that the sampler chose were replayed in training, "
            "expected all. Some samples have no routes: switch rollout.replay_routes on"
        )
