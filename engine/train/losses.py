"""The losses and their building blocks.

The contract: a loss returns sums over the loss tokens of one micro-batch. They are divided once, by one global
denominator that is known before backward. So the same global batch gives the same loss and gradients however it is
split into micro-batches and ranks. Nothing else in the engine scales a loss.

Masks select and never multiply, because a value outside the mask may be NaN or infinite (SkyRL#1635, miles#1363).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import torch.distributed as dist
from torch import Tensor

from cascade_rl.engine.core.train_sequence import TrainSequence
from cascade_rl.engine.train.context_parallel import sequence_means
from cascade_rl.engine.train.packing import MicroBatch
from cascade_rl.kernels.policy_loss import policy_loss
from cascade_rl.kernels.policy_objective import PolicyObjective

if TYPE_CHECKING:
    from cascade_rl.engine.models.head import Head

Sums = tuple[Tensor, dict[str, Tensor]]


class Loss(Protocol):
    def denominator(self, sequences: Sequence[TrainSequence]) -> float:
        """The divisor of the sum over all micro-batches and ranks. `sequences` is the whole global batch."""
        ...

    def __call__(self, logprob: Tensor, entropy: Tensor, batch: MicroBatch) -> Sums:
        """The sum to minimise, with gradient, and detached sums over the loss tokens for the metrics.

        logprob, entropy: float32 [tokens]. Each sum is divided by `denominator`, which gives a mean over the loss
        tokens. "loss" is the number that is optimised.
        """
        ...


@runtime_checkable
class StatesLoss(Protocol):
    """A loss that reads hidden states instead of log-probs. Otherwise like `Loss`."""

    def denominator(self, sequences: Sequence[TrainSequence]) -> float: ...

    def of_states(self, states: Tensor, head: "Head", batch: MicroBatch) -> Sums:
        """states: [tokens, hidden], all tokens of this context parallel rank, also under sequence parallelism. Each
        tensor parallel rank must produce their full gradient."""
        ...


def shares(sequences: Sequence[TrainSequence]) -> float:
    """The sum of the per_token "share" of all loss tokens: the number of whatever the shares make a mean over."""
    return float(sum(sequence.per_token["share"][sequence.loss_mask].sum(dtype=np.float64) for sequence in sequences))


def loss_tokens(sequences: Sequence[TrainSequence]) -> float:
    """The number of loss tokens, from the loss mask only: prompts and masked samples do not count (trl#6439)."""
    return float(sum(int(sequence.loss_mask.sum()) for sequence in sequences))


@dataclass(frozen=True)
class SftLoss:
    """Negative log-likelihood, averaged over the loss tokens of the global batch."""

    def denominator(self, sequences: Sequence[TrainSequence]) -> float:
        return loss_tokens(sequences)

    def __call__(self, logprob: Tensor, entropy: Tensor, batch: MicroBatch) -> Sums:
        loss = -logprob[batch.loss_mask].sum()
        return loss, {"loss": loss.detach(), "entropy": entropy.detach()[batch.loss_mask].sum()}


@dataclass(frozen=True)
class RewardLoss:
    """Sum of slope x reward over the loss tokens. Each sequence has one loss token, its last.

    The slopes (per_token "slope") are d loss / d reward, times the number of pairs, of a loss of all rewards, computed
    before the update. With them the gradient equals that of this loss, whatever micro-batches and ranks the two answers
    of a pair are in.
    """

    def denominator(self, sequences: Sequence[TrainSequence]) -> float:
        return loss_tokens(sequences) / 2

    def of_states(self, states: Tensor, head: "Head", batch: MicroBatch) -> Sums:
        last = batch.loss_mask
        return (batch.per_token["slope"][last] * head.scalar(states[last])).sum(), {}


@dataclass(frozen=True)
class PolicyLoss:
    """`policy_loss` of a micro-batch, averaged over the global batch by the tokens' shares. The default objective is
    Eq. 1 of both papers: REINFORCE with group advantages and an importance weight.

    A token whose weight is 0 still counts in the denominator, as in NeMo-RL. Reads the per_token values in
    `objective.reads`.
    """

    objective: PolicyObjective

    def denominator(self, sequences: Sequence[TrainSequence]) -> float:
        return shares(sequences)

    def __call__(self, logprob: Tensor, entropy: Tensor, batch: MicroBatch) -> Sums:
        mask = batch.loss_mask
        logprob = logprob[mask]  # [loss tokens], as are the values
        values = {name: batch.per_token[name][mask] for name in self.objective.reads}
        if self.objective.surrogate == "gspo":
            log_ratio = logprob.detach() - values["old_logprob"]
            values["sequence_log_ratio"] = sequence_means(log_ratio, batch, _context_group())
        loss, sums = policy_loss(logprob, self.objective, values)
        return loss, {"loss": loss.detach(), "entropy": (values["share"] * entropy.detach()[mask]).sum(), **sums}


def _context_group() -> dist.ProcessGroup | None:
    """The ranks that share each sequence; None without context parallelism."""
    from megatron.core import parallel_state  # here, since most users of this module do not need Megatron

    return parallel_state.get_context_parallel_group(check_initialized=False)


def group_advantages(rewards: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """(r - mean) / (std + 1e-6) over the valid samples of one prompt's group, float32 [group].

    rewards float [group], valid bool [group]. The Bessel-corrected standard deviation and the 1e-6 are those of
    NeMo-RL; the papers specify neither. All advantages of a group are 0 if its valid rewards are equal, or if it has
    fewer than two valid samples. An invalid sample has advantage 0. Its reward is not read and may be NaN.

    Raises ValueError if a valid reward is not finite.
    """
    counted = rewards[valid].astype(np.float64)
    if not np.isfinite(counted).all():
        raise ValueError(f"expected finite rewards for the valid samples of a group, found {counted}")
    advantages = np.zeros(len(rewards), np.float32)
    if len(counted) > 1 and counted.min() < counted.max():
        advantages[valid] = (counted - counted.mean()) / (counted.std(ddof=1) + 1e-6)
    return advantages


def mismatch(train: np.ndarray, rollout: np.ndarray, mask: np.ndarray) -> dict[str, float]:
    """How far the trainer's log-probs are from the sampler's, over the masked tokens; all arrays [tokens].

    tme      mean exp|log p_train - log p_rollout|, the token multiplicative error, 1 when equal
    max_gap  max |log p_train - log p_rollout|
    kl       k3 estimate of KL(rollout || train)

    Raises ValueError if the mask is empty.
    """
    if not mask.any():
        raise ValueError("expected at least one loss token to compare log-probs on, found none")
    gap = train[mask].astype(np.float64) - rollout[mask]
    return {
        "tme": float(np.exp(np.abs(gap)).mean()),
        "max_gap": float(np.abs(gap).max()),
        "kl": float((np.expm1(gap) - gap).mean()),
    }
