"""What the judge of a stage holds on the fullest GPU, beside the trainer and an engine.

Its size is taken to be the policy's. A Bradley-Terry model has a process on each GPU that samples, which holds all
of it while it scores; a judge engine is like the others.
"""

from dataclasses import replace

from cascade_rl.engine.core.settings import ParallelConfig
from cascade_rl.launchers.plan.activations import layer_bytes
from cascade_rl.launchers.plan.engine_memory import EngineWorker
from cascade_rl.launchers.plan.hardware import GIB
from cascade_rl.launchers.plan.trainer_memory import Terms
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.config.reward_model import RewardModel
from cascade_rl.rl_stages.config.stage import Stage


def judge_memory(stage: Stage, worker: EngineWorker, longest: int) -> tuple[Terms, Terms]:
    """While engines are awake, and while they sleep. `longest`: tokens of the longest sequence."""
    judge = _judge(stage)
    if judge is None:
        return {}, {}
    if judge.kind == "bradley_terry":
        process = {"reward model's process": GIB * worker.assumed.context_gib}
        return {"reward model": _weights(worker), "reward model's work": _work(worker, longest), **process}, process
    judges = replace(worker, rollout=replace(worker.rollout, weight_buffer=False))  # its weights stay as they are
    return _judges(judges.awake()), _judges(judges.asleep())


def judge_host_bytes(stage: Stage, worker: EngineWorker, gpus: int) -> int:
    """Bytes of host memory of a node with `gpus` GPUs: a Bradley-Terry model is there between the groups."""
    judge = _judge(stage)
    return gpus * _weights(worker) if judge and judge.kind == "bradley_terry" else 0


def _judge(stage: Stage) -> RewardModel | None:
    """The stage's judge, unless a server is."""
    judge = stage.reward_model if isinstance(stage, GrpoStage) else None
    return judge if judge and judge.folder_or_stage else None


def _judges(terms: Terms) -> Terms:
    return {f"judge's {name}": size for name, size in terms.items()}


def _weights(worker: EngineWorker) -> int:
    return worker.itemsize * worker.model.worker_numbers(1, expert_parallel=False)


def _work(worker: EngineWorker, tokens: int) -> float:
    cut = ParallelConfig(precision=worker.rollout.dtype)
    layer = max(layer_bytes(worker.model, symbol, cut) for symbol in set(worker.model.pattern))
    return layer * tokens
