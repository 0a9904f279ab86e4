"""Trainer and sampler see the same policy: what holds in each step of a stage that learns from its own samples."""

from dataclasses import replace

import numpy as np

from cascade_rl.engine.core.train_sequence import TrainSequence
from cascade_rl.engine.train.losses import mismatch


class Mismatch(RuntimeError):
    """Trainer and sampler disagree on the log-probs of the same tokens by more than the bound."""


def require_agreement(
    sequences: list[TrainSequence], train_logprobs: list[np.ndarray], bound: float, step: int
) -> dict[str, float]:
    """The gap between the trainer's log-probs, before the update, and the sampler's, over the loss tokens (see
    `mismatch`). Raises Mismatch where its mean is beyond the bound, before it can harm the weights."""
    mask = np.concatenate([sequence.loss_mask for sequence in sequences])
    rollout = np.concatenate([sequence.per_token["rollout_logprob"] for sequence in sequences])
    gap = mismatch(np.concatenate(train_logprobs), rollout, mask)
    if not gap["tme"] <= bound:
        raise Mismatch(
            f"step {step + 1}: mean of exp|log p_train - log p_rollout| is {gap['tme']:.6f}, expected at most {bound} "
            f"(largest gap {gap['max_gap']:.2e}). The weights are unchanged. If the sampler runs in lower precision, "
            "raise tme_bound; otherwise the refit or the replayed routes are wrong"
        )
    return gap


def mask_disagreeing(
    sequences: list[TrainSequence], train_logprobs: list[np.ndarray], bound: float | None, step: int
) -> tuple[list[TrainSequence], dict[str, float]]:
    """The sequences, and what share of them is masked: those whose own mean of exp|log p_train - log p_rollout| is
    beyond the bound leave the loss, and with it what `require_agreement` looks at (NeMo-RL's
    seq_logprob_error_threshold). None: as they are. Raises Mismatch where none is left."""
    if bound is None:
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
    """1.0, which is no error, where the sequence has no loss token."""
    if not sequence.loss_mask.any():
        return 1.0
    return mismatch(train_logprobs, sequence.per_token["rollout_logprob"], sequence.loss_mask)["tme"]


def require_replay(fraction: float, step: int) -> None:
    """Raises Mismatch unless all of the sampler's expert choices were replayed."""
    if fraction != 1.0:
        raise Mismatch(
            f"step {step + 1}: {fraction:.4f} of the experts that the sampler chose were replayed in training, "
            "expected all. Some samples carry no routes: switch rollout.replay_routes on, and prefix caching off"
        )
