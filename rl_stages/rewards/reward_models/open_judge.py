"""The judge that a stage's configuration asks for."""

from pathlib import Path

from cascade_rl.engine.cluster.node import Node
from cascade_rl.engine.core.settings import RolloutConfig
from cascade_rl.rl_stages.config.reward_model import RewardModel
from cascade_rl.rl_stages.rewards.reward_models.judge_client import JudgeClient, JudgeModel
from cascade_rl.rl_stages.rewards.reward_models.server_client import Limits


def open_judge(
    settings: RewardModel, folder: Path | None, rollout: RolloutConfig, log_path: Path, node: Node | None = None
) -> JudgeModel:
    """A client, or an engine with the weights in `folder`, configured like the trainer's, on `node` (None: this one).
    The caller closes it."""
    if folder is not None:
        # imported here: it imports transformers, which took 1.2 s of a launcher's start
        from cascade_rl.rl_stages.rewards.reward_models.served_model import ServedModel

        return ServedModel(
            folder,
            rollout,
            log_path,
            node,
            deadline_seconds=settings.deadline_seconds,
            concurrency=settings.concurrency,
        )
    return JudgeClient(str(settings.url), settings.model, **limits_of(settings))


def limits_of(settings: RewardModel) -> Limits:
    """What a client of its server keeps to."""
    return {
        "deadline_seconds": settings.deadline_seconds,
        "retries": settings.retries,
        "concurrency": settings.concurrency,
        "api_key_env": settings.api_key_env,
    }
