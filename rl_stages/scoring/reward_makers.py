"""The verifiers that score a stage's samples in training if its configuration names a reward model."""

from collections.abc import Callable
from pathlib import Path

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.settings import RolloutConfig
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.config.reward_model import RewardModel
from cascade_rl.rl_stages.config.stage import Stage
from cascade_rl.rl_stages.core.verdict import GroupVerifier, Verifier
from cascade_rl.rl_stages.rewards.reward_models.bonus import BonusVerifier
from cascade_rl.rl_stages.rewards.reward_models.bradley_terry_scorer import BradleyTerryScorer, BradleyTerryVerifier
from cascade_rl.rl_stages.rewards.reward_models.open_judge import open_judge
from cascade_rl.rl_stages.tasks.domains import domain_named, rules_of

Maker = Callable[[], Verifier | GroupVerifier]


def reward_makers(
    stage: Stage, find: Callable[[str], Path], rollout: RolloutConfig, log_path: Path
) -> dict[str, Maker]:
    """Makers of verifiers by domain, called when first needed. Empty without a reward model.

    find  maps the name of a stage or folder in the configuration to its weights

    Raises UserError for a domain that the reward model does not score. Starts and reads nothing.
    """
    if not isinstance(stage, GrpoStage) or stage.reward_model is None:
        return {}
    settings = stage.reward_model
    folder = find(settings.model) if settings.folder_or_stage else None
    if settings.kind == "bradley_terry":
        return {stage.domain: _bradley_terry(stage, settings, find(settings.model))}
    make = domain_named(stage.domain).judged
    if make is None:
        raise UserError(f"{stage.name}.reward_model: expected none: {stage.domain!r} is not scored by a judge")
    group = stage.rollouts_per_prompt
    return {stage.domain: lambda: make(open_judge(settings, folder, rollout, log_path), settings, group)}


def _bradley_terry(stage: GrpoStage, settings: RewardModel, folder: Path) -> Maker:
    if not settings.bonus:
        return lambda: BradleyTerryVerifier(BradleyTerryScorer(folder), shaped=settings.shaped)
    rules = rules_of(stage.domain, f"{stage.name}.reward_model.bonus")
    return lambda: BonusVerifier(rules(), BradleyTerryScorer(folder))
