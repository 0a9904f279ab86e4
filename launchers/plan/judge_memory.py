"""What the judge of a stage holds on the fullest GPU, beside the trainer and an engine.

Its size is taken to be the policy's. A Bradley-Terry model has a process on each GPU, which holds all of it, awake or
not; a judge engine is like the others.
"""

from cascade_rl.engine.core.settings import ParallelConfig
from cascade_rl.launchers.plan.activations import layer_bytes
from cascade_rl.launchers.plan.engine_memory import EngineWorker
from cascade_rl.launchers.plan.hardware import GIB
from cascade_rl.launchers.plan.trainer_memory import Terms
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.config.stage import Stage


def judge_memory(stage: Stage, worker: EngineWorker, longest: int) -> tuple[Terms, Terms]:
    """While engines are awake, and while they sleep. `longest`: tokens of the longest sequence."""
    judge = stage.reward_model if isinstance(stage, GrpoStage) else None
    if judge is None or judge.folder_or_stage is None:
        return {}, {}
    if judge.kind == "bradley_terry":
        return (held := _bradley_terry(worker, longest)), held
    return _judges(worker.awake()), _judges(worker.asleep())


def _judges(terms: Terms) -> Terms:
    return {f"judge's {name}": size for name, size in terms.items()}


def _bradley_terry(worker: EngineWorker, longest: int) -> Terms:
    layer = max(layer_bytes(worker.model, symbol, ParallelConfig()) for symbol in set(worker.model.pattern))
    return {
        "reward model": worker.itemsize * worker.model.worker_numbers(1, expert_parallel=False),
        "reward model's work": layer * worker.itemsize / worker.model.itemsize * longest,
        "reward model's process": GIB * worker.assumed.context_gib,
    }
