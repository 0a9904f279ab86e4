"""Multi-domain on-policy distillation, equations 2 to 4 of Nemotron-Cascade 2 (facts/paper.md 2).

    for each step:
        sample answers to prompts of all domains from the current weights pi
        the teacher of each answer's domain scores the tokens that the student drew
        one optimizer step on  - mean over the answers of the mean over their tokens of (w a log pi)
        move the new weights into the sampler

    a = log pi_teacher - log pi                        of the drawn token alone                   (2)
    r = pi / pi_sampler                                                                            (3)
    w = r where 0.5 <= r <= 2, otherwise 0             a and w have no gradient                    (4)

The mean of -a is an estimate of KL(student || teacher). A token that w drops still counts in its answer's mean, as in
NeMo-RL; the paper does not say. Rewards are logged and not learned from. Exact KL over the whole vocabulary, from the
teacher's hidden states, is a refinement that neither the paper nor this file has.
"""

from collections.abc import Sequence as ListOf
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from torch import Tensor
from transformers import AutoTokenizer

from cascade_rl.distillation.teachers import Teachers
from cascade_rl.engine.errors import UserError
from cascade_rl.engine.losses import Sums
from cascade_rl.engine.packing import MicroBatch
from cascade_rl.engine.ranks import from_rank0
from cascade_rl.engine.sample import Rollout, Sequence
from cascade_rl.rl_stages.agreement import require_agreement, require_replay
from cascade_rl.rl_stages.config import MopdStage
from cascade_rl.rl_stages.prompt_stream import PromptStream
from cascade_rl.rl_stages.sample_record import SampleRecord
from cascade_rl.rl_stages.scored_sample import Sample, outcomes, record
from cascade_rl.rl_stages.session import Session
from cascade_rl.rl_stages.task import Task


@dataclass(frozen=True)
class MopdLoss:
    """Equation 4. Reads per_token "advantage", "rollout_logprob" and "share", which is 1 / (loss tokens of the
    sequence); the metrics are means over sequences of means over tokens, as the loss is."""

    low: float = 0.5
    high: float = 2.0

    def denominator(self, sequences: ListOf[Sequence]) -> float:
        return float(sum(sequence.loss_mask.any() for sequence in sequences))

    def __call__(self, logprob: Tensor, entropy: Tensor, batch: MicroBatch) -> Sums:
        logprob, entropy, advantage, rollout, share = (
            values[batch.loss_mask]  # [loss tokens]
            for values in (logprob, entropy, *(batch.per_token[name] for name in READ))
        )
        ratio = (logprob.detach() - rollout).exp()
        kept = (self.low <= ratio) & (ratio <= self.high)
        coefficient = share * ratio * advantage
        loss = -(coefficient[kept] * logprob[kept]).sum()
        metrics = {
            "loss": loss,
            "entropy": (share * entropy).sum(),
            "reverse_kl": -(share * advantage).sum(),
            "importance_weight": (share * ratio)[kept].sum(),
            "importance_dropped": share[~kept].sum(),
        }
        return loss, {name: value.detach() for name, value in metrics.items()}


READ = ("advantage", "rollout_logprob", "share")


def run(session: Session[MopdStage]) -> None:
    """All steps that the stage still has to take."""
    stage, trainer = session.stage, session.trainer
    prompts = PromptStream(session.tasks(stage.data, "train"), session.seed)
    teachers = _teachers(session)
    loss = MopdLoss(stage.importance_low, stage.importance_high)
    for step in session.steps():
        tasks = prompts.batch(step, stage.prompts_per_step)
        with session.phase("generation"):
            groups = session.draw(f"{stage.name}/{step + 1}", tasks, stage.rollouts_per_prompt, stage.sampling)
        with session.phase("reward"):
            samples = from_rank0(partial(_samples, session, tasks, groups))
        sequences = [sample.sequence(stage.sampling.temperature) for sample in samples]
        domains = [sample.task.domain for sample in samples]
        with session.phase("log-prob"):
            student = trainer.log_probs(sequences)
            gap = require_agreement(sequences, student, stage.tme_bound, step)
        with session.phase("teacher"):
            teacher = teachers.log_probs(sequences, domains)
        sequences = [with_advantage(*parts) for parts in zip(sequences, teacher, student, strict=True)]
        with session.phase("update"):
            learned = trainer.update(sequences, loss, step)
        require_replay(learned["replay_fraction"], step)
        with session.phase("refit"):
            probe_gap = session.refit(step + 1)
        records = [_record(*parts) for parts in zip(samples, sequences, student, teacher, strict=True)]
        metrics = {**outcomes(samples), **gap, **learned, **reverse_kl(sequences, domains), "probe_gap": probe_gap}
        session.record(step + 1, metrics, sum(len(sample.rollout.token_ids) for sample in samples), records)


def with_advantage(sequence: Sequence, teacher: np.ndarray, student: np.ndarray) -> Sequence:
    """Equation 2, and each token's share in its sequence's mean; log-probs float32 [n - 1]."""
    share = np.full_like(student, 1 / sequence.loss_mask.sum())
    return replace(sequence, per_token={**sequence.per_token, "advantage": teacher - student, "share": share})


def reverse_kl(sequences: ListOf[Sequence], domains: ListOf[str]) -> dict[str, float]:
    """Mean over each domain's answers of the mean over their tokens of log pi - log pi_teacher."""
    means = [-float(sequence.per_token["advantage"][sequence.loss_mask].mean()) for sequence in sequences]
    return {
        f"reverse_kl_{domain}": float(
            np.mean([mean for mean, own in zip(means, domains, strict=True) if own == domain])
        )
        for domain in sorted(set(domains))
    }


def _teachers(session: Session[MopdStage]) -> Teachers:
    folders = {domain: session.folder.teacher(domain) for domain in session.stage.teachers}
    for domain, folder in folders.items():
        if AutoTokenizer.from_pretrained(folder).get_vocab() != session.tokenizer.get_vocab():
            raise UserError(
                f"{session.stage.name}.teachers.{domain}: expected the student's tokenizer, of {session.parent}, found "
                f"another one in {folder}. A teacher scores the student's tokens, so both need the same"
            )
    return Teachers(session.trainer, folders)


def _samples(session: Session[MopdStage], tasks: list[Task], groups: list[list[Rollout]]) -> list[Sample]:
    return [
        Sample(task, rollout, *answer)
        for task, rollouts, answers in zip(tasks, groups, session.judge(tasks, groups), strict=True)
        for rollout, answer in zip(rollouts, answers, strict=True)
    ]


def _record(sample: Sample, sequence: Sequence, student: np.ndarray, teacher: np.ndarray) -> SampleRecord:
    mean = float(sequence.per_token["advantage"][sequence.loss_mask].mean())
    kept = record(replace(sample, advantage=mean), sequence, student)
    return replace(kept, teacher_logprobs=teacher[-len(sample.rollout.token_ids) :])
