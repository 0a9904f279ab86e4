"""`cascade replay RUN STAGE STEP`: recomputes the training half of a recorded step, without an engine.

The weights come from the checkpoint before the step, the samples from the record of the step, and the experts' routes
from its ledger. The reference of a KL term and the teachers are the model folders of the stage. One rank computes the
log-probs, those of the teachers included, the update, and the metrics of the samples. It compares them with the values
that the run recorded. Metrics that need an engine, or samples that were not trained on, are listed as not recomputed.
Relative paths of the run, such as that of its base, are resolved from the current folder.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from cascade_rl.distillation import mopd
from cascade_rl.distillation.teachers import Teachers
from cascade_rl.engine.backend.kept_tensors import KeptTensors
from cascade_rl.engine.backend.process_groups import initialize_distributed
from cascade_rl.engine.cluster.rank_environment import ALONE
from cascade_rl.engine.core.rollouts import Outcome, Rollout
from cascade_rl.engine.core.settings import ParallelConfig
from cascade_rl.engine.core.train_sequence import TrainSequence
from cascade_rl.engine.models import read_config
from cascade_rl.engine.train import checkpoint
from cascade_rl.engine.train.losses import PolicyLoss
from cascade_rl.engine.train.reference import first_weights
from cascade_rl.engine.train.trainer import Trainer
from cascade_rl.launchers.stage.recorded_step import RecordedStep
from cascade_rl.rl_stages import grpo
from cascade_rl.rl_stages.agreement import require_agreement
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.config.mopd_stage import MopdStage
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.core.verdict import Verdict
from cascade_rl.rl_stages.run.ledger import read_ledger
from cascade_rl.rl_stages.run.run_folder import RunFolder, StageFolder
from cascade_rl.rl_stages.run.sample_record import read_samples
from cascade_rl.rl_stages.scoring.normaliser import with_shares
from cascade_rl.rl_stages.scoring.scored_sample import Penalty, Rule, Sample, outcomes
from cascade_rl.rl_stages.step_batch import StepBatch

LOGPROB_BOUND = 1e-4  # nats; a different layout sums in a different order
METRIC_BOUND = 1e-3  # relative

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Found:
    """The recomputed values: log-probs [n - 1] of each sequence by their column in the record, and metrics."""

    logprobs: Mapping[str, Sequence[np.ndarray]]
    metrics: Mapping[str, float]


def run(recorded_step: RecordedStep) -> int:
    """Prints the differences. Exit code 1 if there are any."""
    run, stage, step, config = recorded_step.run, recorded_step.stage, recorded_step.step, recorded_step.config
    rows = read_samples(stage.rollouts(step))
    samples = _samples(rows, _rollouts(recorded_step.ledgers))
    trainer, reference = _trainer(run, stage, step)
    sequences = [_sequence(*pair, config.sampling.temperature) for pair in zip(rows, samples, strict=True)]
    if isinstance(config, MopdStage):
        teachers = {domain: run.teacher(stage, domain) for domain in config.teachers}
        found = _distilled(config, trainer, teachers, samples, sequences, step)
    else:
        found = _reinforced(config, trainer, reference, samples, sequences, step)
    recorded = stage.metrics.rows()[step - 1]
    parts = [*_logprob_parts(rows, found.logprobs), *_metric_parts(recorded, found.metrics)]
    print("\n".join([*parts, _summary(f"{stage.label}, step {step}", rows, recorded, found, bool(parts))]))
    return 1 if parts else 0


def _rollouts(ledgers: Sequence[Path]) -> Mapping[str, Rollout]:
    return {name: rollout for path in ledgers for name, rollout in read_ledger(path).rollouts.items()}


def _samples(rows: Rows, rollouts: Mapping[str, Rollout]) -> list[Sample]:
    return [
        Sample(
            Task(row["task_id"], row["domain"], (), {}),
            rollouts[row["id"]],
            row["text"],
            Verdict(Outcome(row["outcome"]), row["reward"]),
            row["advantage"],
            penalty=_penalty(row),
        )
        for row in rows
    ]


def _penalty(row: Mapping[str, Any]) -> Penalty | None:
    rules = [rule for rule in get_args(Rule) if rule in dict(row["reward_parts"])]
    return Penalty(rules[0], row["reward"]) if rules else None


def _trainer(run: RunFolder, stage: StageFolder, step: int) -> tuple[Trainer, KeptTensors | None]:
    """The trainer with the weights before the step, and the stage's first weights as reference of a KL term."""
    before, config = step - 1, stage.config
    parent = stage.parent.export if stage.parent else Path(run.cascade.base.hf or run.root / "base")
    os.environ.update(ALONE)
    alone = ParallelConfig(precision=run.cascade.layout(config).parallel.precision)
    initialize_distributed(alone, run.cascade.seed)
    trainer = Trainer(
        read_config(parent),
        alone,
        config.optimizer,
        total_steps=config.steps,
        token_budget=config.token_budget,
        seed=run.cascade.seed,
        router=config.router,
        lora=config.lora,
    )
    trainer.load_hf(parent)
    reference = first_weights(trainer) if isinstance(config, GrpoStage) and config.kl_coefficient else None
    if before:
        checkpoint.load(trainer, stage.checkpoint(before))
    return trainer, reference


def _sequence(row: Mapping[str, Any], sample: Sample, temperature: float) -> TrainSequence:
    """The sequence with the recorded loss mask, because a rule may have masked the sample."""
    sequence = sample.sequence(temperature)
    mask = np.zeros_like(sequence.loss_mask)
    mask[len(row["prompt_ids"]) - 1 :] = row["loss_mask"]
    return replace(sequence, loss_mask=mask)


def _reinforced(
    config: GrpoStage,
    trainer: Trainer,
    reference: KeptTensors | None,
    samples: list[Sample],
    sequences: list[TrainSequence],
    step: int,
) -> Found:
    student = trainer.log_probs(sequences)
    told = _of_batch(config, samples) | _agreement(config, samples, sequences, student, step)
    sequences = with_shares(sequences, config.normaliser, config.rollouts_per_prompt)
    sequences = grpo.with_old(config, sequences, student)
    sequences = grpo.with_reference(trainer, reference, sequences)
    learned = trainer.update(sequences, PolicyLoss(config.objective), step - 1, config.updates_per_step)
    return Found({"train_logprobs": student}, told | learned)


def _of_batch(config: GrpoStage, samples: list[Sample]) -> dict[str, float]:
    """Metrics of the samples. Dynamic filtering records no dropped groups, so what describes them all is left out."""
    told = StepBatch(([samples],), [samples]).metrics(replace(config, dynamic_filtering=False))
    return {"signal_fraction": told["signal_fraction"]} if config.dynamic_filtering else told


def _distilled(
    config: MopdStage,
    trainer: Trainer,
    folders: Mapping[str, Path],
    samples: list[Sample],
    sequences: list[TrainSequence],
    step: int,
) -> Found:
    teachers = Teachers(trainer, folders, keep_heads=config.objective == "exact")
    loss, domains = mopd.loss_of(config, teachers), [sample.task.domain for sample in samples]
    student = trainer.log_probs(sequences)
    told = outcomes(samples) | _agreement(config, samples, sequences, student, step)
    taught = teachers.read(sequences, domains, loss.read)
    sequences = [mopd.with_teacher(*parts) for parts in zip(sequences, taught, student, strict=True)]
    learned = trainer.update(sequences, loss, step - 1)
    logprobs = {"train_logprobs": student, "teacher_logprobs": [values["logprob"] for values in taught]}
    return Found(logprobs, told | learned | mopd.reverse_kl(sequences, domains))


def _agreement(
    config: GrpoStage | MopdStage,
    samples: list[Sample],
    sequences: list[TrainSequence],
    student: list[np.ndarray],
    step: int,
) -> dict[str, float]:
    unbounded = replace(config, tme_bound=np.inf, stale_gap_bound=np.inf)  # what differs is said, not raised
    return require_agreement(unbounded, samples, sequences, student, step - 1)


def _logprob_parts(rows: Rows, found: Mapping[str, Sequence[np.ndarray]]) -> Iterator[str]:
    for column, logprobs in found.items():
        for row, values in zip(rows, logprobs, strict=True):
            gaps = np.abs(values[len(row["prompt_ids"]) - 1 :] - np.array(row[column], np.float32))
            if not gaps.max(initial=0.0) <= LOGPROB_BOUND:
                token = int(np.argmax(gaps))
                yield f"{row['id']}: {column} of token {token} differ by {gaps[token]:.2e} from the recorded ones"


def _metric_parts(recorded: Mapping[str, float], found: Mapping[str, float]) -> Iterator[str]:
    for name in [name for name in recorded if name in found]:
        if not np.isclose(found[name], recorded[name], rtol=METRIC_BOUND, atol=1e-5):
            yield f"{name}: {found[name]:.6g}, recorded {recorded[name]:.6g}"


def _summary(what: str, rows: Rows, recorded: Mapping[str, float], found: Found, parted: bool) -> str:
    compared = found.metrics.keys() & recorded.keys()
    left = [name for name in recorded if name not in compared and name != "step"]
    verdict = "not all" if parted else "all"
    columns = ", ".join(found.logprobs)
    return (
        f"{what}: {len(rows)} samples ({columns}) and {len(compared)} metrics, {verdict} as recorded; "
        f"not recomputed: {', '.join(left) or 'none'}"
    )
