"""The values that a teacher gives for each token, and the loss that learns from them. `MopdStage.objective` selects:

sampled  the log-prob of the token that the student sampled (arXiv 2603.19220, equations 2 to 4)
topk     a KL over the teacher's k likeliest tokens, with one bucket for all others; it is at most the exact KL
exact    a KL, or the Jensen-Shannon divergence, over the whole vocabulary, from the teacher's hidden states and head

The last two take the expectation over the next token instead of a sample, so they need no importance weight. All three
average over the tokens of an answer and then over answers. None keeps a [tokens, vocabulary] tensor.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.train_sequence import TrainSequence
from cascade_rl.engine.models.head import Head
from cascade_rl.engine.train.losses import Loss, StatesLoss, Sums
from cascade_rl.engine.train.packing import MicroBatch
from cascade_rl.engine.train.trainer import read_logprob
from cascade_rl.kernels.fused_linear_kl import Kind, fused_linear_kl
from cascade_rl.kernels.fused_linear_logprob import fused_linear_logprob
from cascade_rl.kernels.parts.vocabulary import IGNORED, VocabularyShard
from cascade_rl.kernels.policy_loss import importance_weight
from cascade_rl.kernels.topk_kl import Kind as TopkKind
from cascade_rl.kernels.topk_kl import topk_kl

EXACT_IDS = 2**24  # float32, the type of all per_token values, is exact for whole numbers up to this
CHUNK_TOKENS = 512


class Teaching(Protocol):
    def read(self, states: Tensor, head: Head, batch: MicroBatch) -> dict[str, Tensor]:
        """The `Reader` of a teacher: "logprob" of the sampled tokens, and the per_token values that the loss reads."""
        ...


def answers(sequences: Sequence[TrainSequence]) -> float:
    """The number of answers with loss tokens."""
    return float(sum(sequence.loss_mask.any() for sequence in sequences))


@dataclass(frozen=True)
class SampledLoss(Teaching, Loss):
    """Equation 4 of arXiv 2603.19220. Reads per_token "advantage", "rollout_logprob" and "share", which is
    1 / (loss tokens of the sequence). Like the loss, the metrics average over tokens and then over sequences."""

    low: float = 0.5
    high: float = 2.0

    def read(self, states: Tensor, head: Head, batch: MicroBatch) -> dict[str, Tensor]:
        return read_logprob(states, head, batch)

    def denominator(self, sequences: Sequence[TrainSequence]) -> float:
        return answers(sequences)

    def __call__(self, logprob: Tensor, entropy: Tensor, batch: MicroBatch) -> Sums:
        logprob, entropy, advantage, rollout, share = (
            values[batch.loss_mask]  # [loss tokens]
            for values in (logprob, entropy, *(batch.per_token[name] for name in READ))
        )
        weight, dropped = importance_weight(logprob.detach() - rollout, "masked", self.low, self.high)
        kept, coefficient = ~dropped, share * weight * advantage
        loss = -(coefficient[kept] * logprob[kept]).sum()
        metrics = {
            "loss": loss,
            "entropy": (share * entropy).sum(),
            "reverse_kl": -(share * advantage).sum(),
            "importance_weight": (share * weight)[kept].sum(),
            "importance_dropped": share[dropped].sum(),
        }
        return loss, {name: value.detach() for name, value in metrics.items()}


READ = ("advantage", "rollout_logprob", "share")


@dataclass(frozen=True)
class TopkLoss(Teaching, StatesLoss):
    """Reads per_token "share" [tokens], "teacher_ids" and "teacher_logprobs" [tokens, k]."""

    k: int
    kind: TopkKind

    def read(self, states: Tensor, head: Head, batch: MicroBatch) -> dict[str, Tensor]:
        ids = top_ids(states, head, self.k)
        logprobs = _candidates(states, head, batch.targets, batch.temperature, ids)
        return read_logprob(states, head, batch) | {"teacher_ids": ids.float(), "teacher_logprobs": logprobs}

    def denominator(self, sequences: Sequence[TrainSequence]) -> float:
        return answers(sequences)

    def of_states(self, states: Tensor, head: Head, batch: MicroBatch) -> Sums:
        mask, ids = batch.loss_mask, batch.per_token["teacher_ids"].long()
        learned = batch.targets.where(mask, IGNORED)
        student = _candidates(states, head, learned, batch.temperature, ids)
        kl = topk_kl(student[mask], batch.per_token["teacher_logprobs"][mask], kind=self.kind)
        return _of_kl((batch.per_token["share"][mask] * kl).sum(), self.kind)


@dataclass(frozen=True)
class ExactLoss(Teaching, StatesLoss):
    """Reads per_token "share" [tokens], "teacher" [tokens] (its number) and "teacher_states" [tokens, n]; n is at least
    the hidden size of the teacher, which need not be the student's.

    heads  teacher's number -> its head, [padded vocabulary / tensor, its hidden size], on the ranks of the last
           pipeline stage
    """

    heads: Mapping[int, Tensor]
    kind: Kind

    def read(self, states: Tensor, head: Head, batch: MicroBatch) -> dict[str, Tensor]:
        return read_logprob(states, head, batch) | {"teacher_states": states.float()}

    def denominator(self, sequences: Sequence[TrainSequence]) -> float:
        return answers(sequences)

    def of_states(self, states: Tensor, head: Head, batch: MicroBatch) -> Sums:
        taught = batch.per_token["teacher_states"].to(states.dtype)
        by_teacher = [
            fused_linear_kl(
                states,
                head.weight,
                taught[:, : self.heads[number].shape[1]],
                self.heads[number],
                batch.temperature,
                kind=self.kind,
                vocab_size=head.vocab_size,
                mask=batch.loss_mask & (batch.per_token["teacher"] == number),
                tp_group=head.tp_group,
            )
            for number in sorted(self.heads)
        ]
        kl, mask = torch.stack(by_teacher).sum(0), batch.loss_mask
        return _of_kl((batch.per_token["share"][mask] * kl[mask]).sum(), self.kind)


def _of_kl(loss: Tensor, kind: Kind) -> Sums:
    return loss, {"loss": loss.detach(), "jsd" if kind == "jsd" else f"{kind}_kl": loss.detach()}


def top_ids(states: Tensor, head: Head, k: int) -> Tensor:
    """The k likeliest tokens after each hidden state, int64 [tokens, k], over all tensor parallel ranks.

    Raises UserError if k is larger than the part of the vocabulary on each rank.
    """
    shard = VocabularyShard.of(head.weight, head.vocab_size, head.tp_group)
    limit = min(len(head.weight), head.vocab_size, EXACT_IDS)
    if not k <= limit:
        raise UserError(f"topk: expected at most {limit}, the tokens that each rank holds; found {k}: lower it")
    return torch.cat([_top_ids(rows, head, shard, k) for rows in states.split(CHUNK_TOKENS)])


def _top_ids(rows: Tensor, head: Head, shard: VocabularyShard, k: int) -> Tensor:
    logits = rows.float() @ head.weight.float().T  # [rows, padded vocabulary / tensor]
    logits[:, shard.columns :] = -torch.inf
    local = logits.topk(k, dim=1)
    values = shard.gather(local.values.T).flatten(0, 1)  # [tensor x k, rows]
    ids = shard.gather(local.indices.T + shard.first).flatten(0, 1)
    return ids.gather(0, values.topk(k, dim=0).indices).T


def _candidates(states: Tensor, head: Head, targets: Tensor, temperature: Tensor, ids: Tensor) -> Tensor:
    """Log-probs [tokens, k] of `ids`; 0 if the target is IGNORED."""
    return fused_linear_logprob(
        states,
        head.weight,
        targets,
        temperature,
        vocab_size=head.vocab_size,
        candidates=ids,
        tp_group=head.tp_group,
    ).candidate_logprob
