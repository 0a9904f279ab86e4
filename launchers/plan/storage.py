"""Disk space that a stage takes in the run folder, and host memory that its samples take."""

from collections.abc import Mapping

from cascade_rl.launchers.plan.model import Model
from cascade_rl.launchers.plan.trainer_memory import batch_bytes
from cascade_rl.launchers.plan.workload import Workload
from cascade_rl.rl_stages.config.cascade import Layout
from cascade_rl.rl_stages.config.mopd_stage import MopdStage
from cascade_rl.rl_stages.config.stage import OnPolicyStage, Stage

STATE_IN_CHECKPOINT = 12  # bytes per parameter: a float32 weight and two moments
ID, LOGPROB, MASK, TEXT = 4, 4, 1, 4  # bytes per token in the parquet file of a step, uncompressed


def disk_bytes(model: Model, stage: Stage, work: Workload) -> Mapping[str, float]:
    """Bytes by kind. The checkpoints are those that are kept, and the one that is being written."""
    checkpoint = model.parameters * (model.itemsize + STATE_IN_CHECKPOINT)
    return {
        "checkpoints": checkpoint * (stage.keep_checkpoints + 1),
        "rollouts": stage.steps * step_file_bytes(stage, work),
        "export": model.parameters * model.itemsize,
    }


def step_file_bytes(stage: Stage, work: Workload) -> float:
    """Bytes of the samples of one step (rl_stages/run/sample_record.py), at mean lengths."""
    if not isinstance(stage, OnPolicyStage):
        return 0
    models = 3 if isinstance(stage, MopdStage) else 2
    answer = ID + models * LOGPROB + MASK + TEXT
    return work.sequences * (work.prompt * ID + work.answer * answer)


def host_bytes(model: Model, stage: Stage, layout: Layout, work: Workload, gpus_per_node: int) -> float:
    """Bytes of host memory per node if every answer has the maximum length.

    Each rank holds all samples of a step, with ids, log-probs and the experts of each token (int16), and the
    micro-batches of its replica.
    """
    if not isinstance(stage, OnPolicyStage):
        return 0
    routes = 2 * model.routes if layout.rollout.replay_routes else 0
    token: float = 2 * 8 + 2 * 4 + 1 + routes  # ids of rollout and sequence, log-probs of sampler and trainer, mask
    cut = layout.parallel
    replicas = layout.nproc // (cut.tensor * cut.pipeline * cut.context)
    token += batch_bytes(model, stage, layout) / replicas
    return min(layout.nproc, gpus_per_node) * work.most_tokens * token
