"""Disk space that a stage takes in the run folder, and host memory that its samples take."""

from collections.abc import Mapping

from cascade_rl.engine.core.routes import routes_dtype
from cascade_rl.engine.models.memory import FLOAT32, StateBytes
from cascade_rl.launchers.plan.model import Model, trained_itemsize
from cascade_rl.launchers.plan.trainer_memory import batch_bytes
from cascade_rl.launchers.plan.workload import Workload
from cascade_rl.rl_stages.config.cascade import Layout
from cascade_rl.rl_stages.config.mopd_stage import MopdStage
from cascade_rl.rl_stages.config.stage import OnPolicyStage, Stage

STATE_IN_CHECKPOINT = 12  # bytes per parameter: a float32 weight and two moments
ID, LOGPROB, MASK, TEXT = 4, 4, 1, 4  # bytes per token in the parquet file of a step, uncompressed


def disk_bytes(model: Model, stage: Stage, layout: Layout, work: Workload) -> Mapping[str, float]:
    """Bytes by kind. The checkpoints are those that are kept, and the one that is being written."""
    factors = model.factors(stage.lora) if stage.lora else 0
    itemsize = FLOAT32 if factors else trained_itemsize(layout.parallel)
    checkpoint = (factors or model.parameters) * (itemsize + STATE_IN_CHECKPOINT)
    return {
        "checkpoints": checkpoint * (stage.keep_checkpoints + 1),
        "rollouts": stage.steps * step_file_bytes(stage, work),
        "export": model.parameters * model.file_itemsize + factors * FLOAT32,
    }


def step_file_bytes(stage: Stage, work: Workload) -> float:
    """Bytes of the samples of one step (rl_stages/run/sample_record.py), at mean lengths."""
    if not isinstance(stage, OnPolicyStage):
        return 0
    models = 3 if isinstance(stage, MopdStage) else 2
    answer = ID + models * LOGPROB + MASK + TEXT
    return work.sequences * (work.prompt * ID + work.answer * answer)


def sample_host_bytes(model: Model, stage: Stage, layout: Layout, work: Workload, ranks: int, states: int) -> float:
    """Bytes of host memory of rank 0's node, with `ranks` ranks, if every answer has the maximum length: all samples of
    a step on rank 0, those of its replica on each other rank, and the micro-batches of its replica on each."""
    if not isinstance(stage, OnPolicyStage):
        return 0
    cut = layout.parallel
    replicas = layout.nproc // (cut.tensor * cut.pipeline * cut.context)
    sample, batch = sample_bytes(model, layout, states), batch_bytes(model, stage, layout, states)
    return work.most_tokens * (sample + ((ranks - 1) * sample + ranks * batch) / replicas)


def sample_bytes(model: Model, layout: Layout, states: int = 0) -> int:
    """Bytes of a token of a sample in memory: ids of rollout and sequence, log-probs of sampler and trainer, mask, its
    experts, and so many float32 of a teacher's `states`."""
    replayed = model.routes if layout.rollout.replay_routes else 0
    return 2 * 8 + 2 * 4 + 1 + 4 * states + replayed * routes_dtype(model.experts - 1).itemsize


def checkpoint_host_bytes(state: StateBytes) -> int:
    """Bytes of host memory of a rank while a checkpoint is written behind the training: a copy of what it stores
    (engine/train/optimizer_state.py). One rank of each data parallel group stores the weights; all are counted."""
    return state.weights + state.optimizer
