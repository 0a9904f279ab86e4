"""`cascade replay RUN STAGE STEP`: the training half of a recorded step once more, without an engine.

The weights are those of the checkpoint before the step, the samples those that the step recorded, the routes those of
its ledger. Log-probs and the update are computed on one rank and compared with what the run wrote down. Relative paths
of the run, such as its base's, are read from where we stand.
"""

import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cascade_rl.distillation.objectives import SampledLoss
from cascade_rl.engine import checkpoint
from cascade_rl.engine.backend import initialize_distributed
from cascade_rl.engine.config import ParallelConfig
from cascade_rl.engine.errors import UserError
from cascade_rl.engine.losses import GrpoLoss, Loss
from cascade_rl.engine.models import read_config
from cascade_rl.engine.sample import Rollout, Sequence
from cascade_rl.engine.trainer import Trainer
from cascade_rl.rl_stages.config import GrpoStage, MopdStage, OnPolicyStage
from cascade_rl.rl_stages.ledger import read_ledger
from cascade_rl.rl_stages.run_folder import RunFolder, StageFolder
from cascade_rl.rl_stages.sample_record import read_samples

LOGPROB_BOUND = 1e-4  # nats; another layout sums in another order
METRIC_BOUND = 1e-3  # relative


def run(root: Path, name: str, step: int) -> int:
    """Prints what parts; exit code 1 where something does. UserError where the step's data are gone."""
    run = RunFolder.open(root)
    stage = run.stage(name)
    loss = _loss(stage, step)
    rows, routes = _samples(stage, step), _routes(stage, step)
    trainer = _trainer(run, stage, step)
    sequences = [_sequence(stage, row, routes[row["id"]].routes) for row in rows]
    found = trainer.log_probs(sequences)
    parts = list(_logprob_parts(rows, found))
    if isinstance(stage.config, MopdStage):
        sequences = [_taught(*each) for each in zip(rows, sequences, found, strict=True)]
    parts += _metric_parts(stage.metrics.rows()[step - 1], trainer.update(sequences, loss, step - 1))
    print("\n".join(parts) or f"{stage.label}, step {step}: {len(rows)} samples, all as recorded")
    return 1 if parts else 0


def _loss(stage: StageFolder, step: int) -> Loss:
    match stage.config:
        case GrpoStage() as config if not config.kl_coefficient:
            config = config.at(step - 1)
            return GrpoLoss(config.importance, config.importance_low, config.importance_high, 0.0)
        case MopdStage(objective="sampled") as config:
            return SampledLoss(config.importance_low, config.importance_high)
    raise UserError(
        f"{stage.label}: expected GRPO without a KL term or MOPD of sampled tokens, found another stage: its samples "
        "do not hold all that its loss reads"
    )


def _samples(stage: StageFolder, step: int) -> list[dict[str, Any]]:
    if not stage.rollouts(step).exists() or step > len(stage.metrics.rows()):
        raise UserError(f"{stage.label}: expected the samples and metrics of step {step}, found none")
    return read_samples(stage.rollouts(step))


def _routes(stage: StageFolder, step: int) -> Mapping[str, Rollout]:
    path = stage.ledger(step - 1)
    if not path.exists():
        raise UserError(
            f"{stage.label}: expected the ledger of step {step} in {path}, found none. It goes with the checkpoint "
            "before the step: keep_checkpoints says how many stay"
        )
    return read_ledger(path).rollouts


def _trainer(run: RunFolder, stage: StageFolder, step: int) -> Trainer:
    """With the weights before the step."""
    before, config = step - 1, stage.config
    if before and before not in stage.checkpoint_steps():
        kept = ", ".join(map(str, stage.checkpoint_steps()))
        raise UserError(f"{stage.label}: expected the checkpoint of step {before}, found those of steps {kept}")
    parent = stage.parent.export if stage.parent else Path(run.cascade.base.hf or run.root / "base")
    _be_the_only_rank()
    initialize_distributed(ParallelConfig(), run.cascade.seed)
    trainer = Trainer(
        read_config(parent),
        ParallelConfig(),
        config.optimizer,
        total_steps=config.steps,
        token_budget=config.token_budget,
        seed=run.cascade.seed,
        router=config.router,
    )
    trainer.load_hf(parent)
    if before:
        checkpoint.load(trainer, stage.checkpoint(before))
    return trainer


def _be_the_only_rank() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    os.environ.update(alone | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})


def _sequence(stage: StageFolder, row: Mapping[str, Any], routes: np.ndarray | None) -> Sequence:
    assert isinstance(stage.config, OnPolicyStage)
    generated = np.ones(len(row["token_ids"]), bool) if row["generated"] is None else np.array(row["generated"])
    return Sequence(
        token_ids=np.array(row["prompt_ids"] + row["token_ids"]),
        loss_mask=_behind(row, row["loss_mask"], bool),
        temperature=stage.config.sampling.temperature,
        per_token={
            "advantage": _behind(row, generated * row["advantage"], np.float32),
            "rollout_logprob": _behind(row, row["rollout_logprobs"], np.float32),
        },
        routes=routes,
    )


def _taught(row: Mapping[str, Any], sequence: Sequence, student: np.ndarray) -> Sequence:
    share = np.full_like(student, 1 / sequence.loss_mask.sum())
    advantage = _behind(row, row["teacher_logprobs"], np.float32) - student
    return replace(sequence, per_token={**sequence.per_token, "advantage": advantage, "share": share})


def _behind(row: Mapping[str, Any], values: Any, dtype: type) -> np.ndarray:
    """The answer's values in a row of [n - 1], 0 in the prompt."""
    return np.concatenate([np.zeros(len(row["prompt_ids"]) - 1, dtype), np.asarray(values, dtype)])


def _logprob_parts(rows: list[dict[str, Any]], found: list[np.ndarray]) -> Iterator[str]:
    for row, values in zip(rows, found, strict=True):
        gaps = np.abs(values[len(row["prompt_ids"]) - 1 :] - np.array(row["train_logprobs"], np.float32))
        if not gaps.max() <= LOGPROB_BOUND:
            token = int(np.argmax(gaps))
            yield f"{row['id']}: log-prob of token {token} parts by {gaps[token]:.2e} from the recorded one"


def _metric_parts(recorded: Mapping[str, float], learned: Mapping[str, float]) -> Iterator[str]:
    for name in [name for name in learned if name in recorded]:
        if not np.isclose(learned[name], recorded[name], rtol=METRIC_BOUND, atol=1e-5):
            yield f"{name}: {learned[name]:.6g}, recorded {recorded[name]:.6g}"
