"""Multi-domain on-policy distillation: Nemotron-Cascade 2 (arXiv 2603.19220), section 4.4, equations 2 to 4.

    for each step:
        sample answers to prompts of all domains from the current weights pi
        the teacher of each answer's domain scores the tokens that the student sampled
        one optimizer step on  - mean over the answers of the mean over their tokens of (w a log pi)
        move the new weights into the sampler

    a = log pi_teacher - log pi                        of the sampled token alone                 (2)
    r = pi / pi_sampler                                                                            (3)
    w = r where 0.5 <= r <= 2, otherwise 0             a and w have no gradient                    (4)

The mean of -a is an estimate of KL(student || teacher). A token that w drops still counts in its answer's mean, as in
NeMo-RL; the paper does not say. Rewards are logged but not trained on; answers of `evaluation.unmeasured` domains have
none. `stage.objective` can instead choose a divergence over the teacher's top k or over the whole vocabulary
(`objectives.py`); the paper has neither.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from cascade_rl.distillation.objectives import ExactLoss, SampledLoss, TopkLoss
from cascade_rl.distillation.teacher_tokenizer import check_tokenizer
from cascade_rl.distillation.teachers import Teachers
from cascade_rl.engine.cluster.host_memory import available_bytes
from cascade_rl.engine.core.rollouts import Rollout
from cascade_rl.engine.core.train_sequence import TrainSequence
from cascade_rl.engine.lora.peft_config import whole_model
from cascade_rl.rl_stages.agreement import require_agreement, require_replay
from cascade_rl.rl_stages.config.base import is_folder
from cascade_rl.rl_stages.config.mopd_stage import MopdStage
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.passports import require_passports
from cascade_rl.rl_stages.rank_zero import RankZero
from cascade_rl.rl_stages.rollout_stream import Ask, first_ask, rollout_stream
from cascade_rl.rl_stages.run.sample_record import SampleRecord
from cascade_rl.rl_stages.scoring.infrastructure import require_infrastructure
from cascade_rl.rl_stages.scoring.scored_sample import Sample, outcomes, record, sequences_of
from cascade_rl.rl_stages.session import Session
from cascade_rl.rl_stages.tasks.prompt_blend import open_prompts
from cascade_rl.rl_stages.tasks.row_form import RowForm

HOST_MEMORY_SHARE = 0.5  # of what is available when the stage starts, for all teachers; the rest is for page cache
GIB = 1 << 30


def run(session: Session[MopdStage]) -> None:
    """Runs all steps that are left of the stage."""
    stage, trainer = session.stage, session.trainer
    room = session.prompt_room(session.cascade.room(stage))
    heldout = session.cascade.withheld(stage)
    form = RowForm.of(stage)
    prompts = open_prompts(stage.data, session.seed, admits=room.admits, heldout_fraction=heldout, form=form)
    prompts.take(first_ask(session) * stage.prompts_per_step)  # skips those of the finished steps
    teachers = _teachers(session)
    loss = loss_of(stage, teachers)

    def ask(step: int) -> Ask:
        tasks = prompts.take(stage.prompts_per_step)
        return Ask(f"{stage.name}/{step + 1}", tasks, stage.rollouts_per_prompt, stage.sampling)

    with rollout_stream(session, ask) as stream:
        for step in session.steps():
            teachers.prefetch()
            tasks, groups = stream.take(step)
            with session.phase("reward"):
                samples = session.on_rank0(partial(_samples, tasks, groups), lambda all: [each.told() for each in all])
            stream.begin(step + 1)
            verdicts = [(sample.rollout.id, sample.verdict) for sample in samples]
            require_infrastructure(verdicts, stage.max_infrastructure_failures, f"step {step + 1}")
            sequences = sequences_of(samples, stage.sampling.temperature)
            require_passports(samples, sequences, step, session.layout.rollout)
            domains = [sample.task.domain for sample in samples]
            with session.phase("log-prob"):
                student = trainer.log_probs(sequences)
                gap = require_agreement(stage, samples, sequences, student, step)
            with session.phase("teacher"):
                taught = teachers.read(sequences, domains, loss.read)
            sequences = [with_teacher(*parts) for parts in zip(sequences, taught, student, strict=True)]
            with session.phase("update"):
                learned = trainer.update(sequences, loss, step)
            require_replay(learned["replay_fraction"], step, session.layout.rollout)
            learned["probe_gap"] = stream.refit(step + 1)
            if session.zero:
                records = [_record(*parts) for parts in zip(samples, sequences, student, taught, strict=True)]
                told = {**outcomes(samples), **room.metrics, **gap, **learned, **reverse_kl(sequences, domains)}
                session.record(step + 1, told, sum(sample.rollout.length for sample in samples), records)


def loss_of(stage: MopdStage, teachers: Teachers) -> SampledLoss | TopkLoss | ExactLoss:
    """The loss of the stage's objective, which also says what to read from a teacher."""
    match stage.objective:
        case "sampled":
            return SampledLoss(stage.importance_low, stage.importance_high)
        case "topk":
            assert stage.divergence != "jsd"  # as the stage has checked
            return TopkLoss(stage.topk, stage.divergence)
        case "exact":
            return ExactLoss(teachers.heads, stage.divergence)


def with_teacher(sequence: TrainSequence, taught: Mapping[str, np.ndarray], student: np.ndarray) -> TrainSequence:
    """Adds equation 2, each token's share in its sequence's mean, and the teacher's other values, [n - 1, ...] each."""
    told = {name: values for name, values in taught.items() if name != "logprob"}
    share = np.full_like(student, 1 / sequence.loss_mask.sum())
    own = {"advantage": taught["logprob"] - student, "share": share}
    return replace(sequence, per_token={**sequence.per_token, **own, **told})


def reverse_kl(sequences: Sequence[TrainSequence], domains: Sequence[str]) -> dict[str, float]:
    """Mean over each domain's answers of the mean over their tokens of log pi - log pi_teacher."""
    means = [-float(sequence.per_token["advantage"][sequence.loss_mask].mean()) for sequence in sequences]
    return {
        f"reverse_kl_{domain}": float(
            np.mean([mean for mean, own in zip(means, domains, strict=True) if own == domain])
        )
        for domain in sorted(set(domains))
    }


def _teachers(session: Session[MopdStage]) -> Teachers:
    folders = {domain: session.run.teacher(session.folder, domain) for domain in session.stage.teachers}
    for domain, folder in folders.items():
        where = f"{session.stage.name}.teachers.{domain}"
        check_tokenizer(
            where, whole_model(folder), session.tokenizer, foreign=is_folder(session.stage.teachers[domain])
        )
    budget = int(HOST_MEMORY_SHARE * available_bytes())
    keep_heads = session.stage.objective == "exact"
    teachers = Teachers(session.trainer, folders, base=session.parent, keep_heads=keep_heads, memory_bytes=budget)
    if session.log:
        where = "stay in host memory" if teachers.stay else "are read from their checkpoints in every step"
        session.log.progress.say(
            f"teachers ({len(teachers.teachers)}) {where}: they take {teachers.node_bytes / GIB:.1f} GiB a node, "
            f"{HOST_MEMORY_SHARE:.0%} of what is available on the first one is {budget / GIB:.1f} GiB"
        )
    return teachers


def _samples(tasks: list[Task], groups: list[list[Rollout]], zero: RankZero) -> list[Sample]:
    return [
        Sample(task, rollout, *answer)
        for task, rollouts, answers in zip(tasks, groups, zero.rewards(tasks, groups), strict=True)
        for rollout, answer in zip(rollouts, answers, strict=True)
    ]


def _record(sample: Sample, sequence: TrainSequence, student: np.ndarray, taught: Mapping) -> SampleRecord:
    mean = float(sequence.per_token["advantage"][sequence.loss_mask].mean())
    kept = record(replace(sample, advantage=mean), sequence, student)
    return replace(kept, teacher_logprobs=taught["logprob"][-len(sample.rollout.token_ids) :])
