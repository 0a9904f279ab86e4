"""The verifiers that score a stage's samples in training if its configuration names a reward model."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from cascade_rl.engine.cluster.node import Node, ThisNode
from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.settings import RolloutConfig
from cascade_rl.engine.rollout.seats import card_seats, engine_nodes
from cascade_rl.rl_stages.config.cascade import Layout
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.config.reward_model import RewardModel
from cascade_rl.rl_stages.config.stage import Stage
from cascade_rl.rl_stages.core.verdict import GroupVerifier, Verifier
from cascade_rl.rl_stages.rewards.reward_models.bradley_terry.bonus import BonusVerifier
from cascade_rl.rl_stages.rewards.reward_models.bradley_terry.conversation import RewardScorer
from cascade_rl.rl_stages.rewards.reward_models.bradley_terry.pooling_client import PoolingClient
from cascade_rl.rl_stages.rewards.reward_models.bradley_terry.scorer import BradleyTerryScorer
from cascade_rl.rl_stages.rewards.reward_models.bradley_terry.verifier import BradleyTerryVerifier
from cascade_rl.rl_stages.rewards.reward_models.open_judge import limits_of, open_judge
from cascade_rl.rl_stages.tasks.domains import domain_named, rules_of

Maker = Callable[[], Verifier | GroupVerifier]


def reward_makers(
    stage: Stage,
    find: Callable[[str], Path],
    layout: Layout,
    log_path: Path,
    nodes: Sequence[Node] = (ThisNode(),),
) -> dict[str, Maker]:
    """Makers of verifiers by domain, called when first needed. Empty without a reward model.

    find    maps the name of a stage or folder in the configuration to its weights
    nodes   the job's, of which a judge has the first with engines, and a Bradley-Terry model all of these

    Raises UserError for a domain that the reward model does not score. Starts and reads nothing.
    """
    if not isinstance(stage, GrpoStage) or stage.reward_model is None:
        return {}
    settings, group = stage.reward_model, stage.rollouts_per_prompt
    folder = find(settings.folder_or_stage) if settings.folder_or_stage else None
    if settings.kind == "bradley_terry":
        where = layout.rollout, log_path, nodes
        scorer = partial(_local, folder, *where) if folder else partial(_served, settings, group)
        return {stage.domain: _bradley_terry(stage, settings, scorer)}
    make = domain_named(stage.domain).judged
    if make is None:
        raise UserError(f"{stage.name}.reward_model: expected none: {stage.domain!r} is not scored by a judge")
    judge = partial(open_judge, settings, folder, layout.rollout, log_path)
    return {stage.domain: lambda: make(judge(engine_nodes(nodes)[0]), settings, group)}


def _bradley_terry(stage: GrpoStage, settings: RewardModel, open_scorer: Callable[[], RewardScorer]) -> Maker:
    if not settings.bonus:
        return lambda: BradleyTerryVerifier(open_scorer(), shaped=settings.shaped)
    rules = rules_of(stage.domain, f"{stage.name}.reward_model.bonus")
    return lambda: BonusVerifier(rules(), open_scorer())


def _served(settings: RewardModel, group: int) -> RewardScorer:
    return PoolingClient(str(settings.url), settings.model, group, **limits_of(settings))


def _local(folder: Path, rollout: RolloutConfig, log_path: Path, nodes: Sequence[Node]) -> RewardScorer:
    return BradleyTerryScorer(folder, rollout.dtype, log_path, card_seats(rollout, nodes))
