"""On-policy GRPO with verified rewards, the RL loop of both papers (Eq. 1 of arXiv 2512.13607 and 2603.19220).

    for each step:
        sample a group of answers per prompt from the current weights; with `rollout.max_staleness`, from older ones
        score them; advantage = (reward - group mean) / group std, the same for every token of an answer
        one optimizer step on  - mean over tokens of (w A log pi)
        move the new weights into the sampler

`normaliser` says which mean. w is the importance weight for the gap between trainer and sampler. The policy ratio
itself is 1, because each batch is used once. With `updates_per_step` above 1 there are several optimizer steps, each on
its own part of the groups. A `surrogate` other than A log pi clips the ratio to the policy before the first of them.
The trainer's log-probs are computed before the update and compared with the sampler's. A gap above `tme_bound` ends the
run before it can harm the weights. The optional parts of a stage, each with its own field of `GrpoStage`, are in
step_batch.py (dynamic filtering), prompt_stream.py (epoch filter), group_scoring.py (overlong and hopeless answers),
code_switch.py and agreement.py (sequences that disagree).
"""

from collections import Counter
from dataclasses import replace

import numpy as np

from cascade_rl.engine.backend.kept_tensors import KeptTensors
from cascade_rl.engine.core.train_sequence import TrainSequence
from cascade_rl.engine.train.losses import PolicyLoss
from cascade_rl.engine.train.trainer import Trainer
from cascade_rl.rl_stages.agreement import mask_disagreeing, require_agreement, require_replay
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.passports import require_passports
from cascade_rl.rl_stages.prompt_ledger import PromptLedger
from cascade_rl.rl_stages.scoring.normaliser import with_shares
from cascade_rl.rl_stages.scoring.nothing_learned import nothing_learned
from cascade_rl.rl_stages.scoring.scored_sample import Sample, record, sequences_of
from cascade_rl.rl_stages.session import Session
from cascade_rl.rl_stages.step_batch import draw_batch, first_draws


class NothingToLearn(RuntimeError):
    """None of a step's samples may be trained on."""


def run(session: Session[GrpoStage]) -> None:
    """Runs the remaining steps of the stage."""
    trainer, prompts = session.trainer, PromptLedger(session)
    with first_draws(session, prompts) as stream:
        for step in session.steps():
            stage = session.stage.at(step)
            batch = draw_batch(stream, stage, prompts, step)
            stream.begin(step + 1)
            if session.log and step == session.first_step and (warning := nothing_learned(stage, batch.groups)):
                session.log.warn(step + 1, warning)
            _require_trained(batch.samples, step)
            sequences = sequences_of(batch.samples, stage.sampling.temperature)
            require_passports(batch.samples, sequences, step, session.layout.rollout)
            with session.phase("log-prob"):
                train_logprobs = trainer.log_probs(sequences)
                sequences, masked = mask_disagreeing(sequences, train_logprobs, stage.sequence_error_bound, step)
                gap = require_agreement(stage, batch.samples, sequences, train_logprobs, step)
                sequences = with_shares(sequences, stage.normaliser, stage.rollouts_per_prompt)
                sequences = with_old(stage, sequences, train_logprobs)
                sequences = with_reference(trainer, session.reference, sequences)
            with session.phase("update"):
                learned = trainer.update(sequences, PolicyLoss(stage.objective), step, stage.updates_per_step)
            require_replay(learned["replay_fraction"], step, session.layout.rollout)
            learned["probe_gap"] = stream.refit(step + 1)
            if session.zero:
                records = [record(*parts) for parts in zip(batch.samples, sequences, train_logprobs, strict=True)]
                told = {**batch.metrics(stage), **prompts.room.metrics, **masked, **gap, **learned}
                session.record(step + 1, told, sum(sample.rollout.length for sample in batch.drawn), records)


def with_old(stage: GrpoStage, sequences: list[TrainSequence], logprobs: list[np.ndarray]) -> list[TrainSequence]:
    """Adds the policy's log-probs before the update if the loss has a policy ratio."""
    if "old_logprob" not in stage.objective.reads:
        return sequences
    return _with_values(sequences, "old_logprob", logprobs)


def with_reference(
    trainer: Trainer, reference: KeptTensors | None, sequences: list[TrainSequence]
) -> list[TrainSequence]:
    """Adds the log-probs of the stage's first weights if the loss has a KL term."""
    if reference is None:
        return sequences
    with reference.in_place():
        logprobs = trainer.log_probs(sequences)
    return _with_values(sequences, "reference_logprob", logprobs)


def _with_values(sequences: list[TrainSequence], name: str, values: list[np.ndarray]) -> list[TrainSequence]:
    return [
        replace(sequence, per_token={**sequence.per_token, name: own})
        for sequence, own in zip(sequences, values, strict=True)
    ]


def _require_trained(samples: list[Sample], step: int) -> None:
    if any(sample.trained for sample in samples):
        return
    counts = Counter(sample.verdict.outcome.value for sample in samples)
    raise NothingToLearn(
        f"step {step + 1}: expected samples to train on, found only {dict(counts)} "
        f"(last: {samples[-1].verdict.detail}). Truncated samples are trained on with overlong=penalty, "
        "groups without a good answer with min_best_reward=null, infrastructure failures never"
    )
