"""Which verifier a stage's configuration asks for; none of them is started before it is needed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cascade_rl.engine.cluster.node import Node, ThisNode
from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.settings import ParallelConfig, RolloutConfig
from cascade_rl.engine.rollout.seats import Seat
from cascade_rl.rl_stages.config.cascade import Layout
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.config.reward_model import RewardModel
from cascade_rl.rl_stages.rewards.reward_models.bradley_terry.bonus import BonusVerifier
from cascade_rl.rl_stages.rewards.reward_models.bradley_terry.pooling_client import PoolingClient
from cascade_rl.rl_stages.rewards.verifiers.instructions.instruction_following import InstructionFollowingVerifier
from cascade_rl.rl_stages.rewards.verifiers.judged.rlhf import RankingVerifier
from cascade_rl.rl_stages.scoring import reward_makers as module
from cascade_rl.rl_stages.scoring.reward_makers import reward_makers

STAGE = GrpoStage(name="rlhf", domain="rlhf", data=("generate:rlhf",), steps=1, token_budget=64)
SERVER = RewardModel(kind="server", model="judge", url="http://127.0.0.1:9")


def makers(stage: GrpoStage, nodes: Sequence[Node] = (ThisNode(),), **rollout: Any) -> dict[str, module.Maker]:
    layout = Layout(nproc=8, parallel=ParallelConfig(), rollout=RolloutConfig(dtype="bfloat16", **rollout))
    return reward_makers(stage, lambda name: Path("exports") / name, layout, Path("log"), nodes)


@dataclass(frozen=True)
class Host(ThisNode):
    """A node without ranks."""

    name: str = ""


def test_without_a_reward_model_the_domains_verifier_stays() -> None:
    assert makers(STAGE) == {}


def test_a_server_ranks_the_answers() -> None:
    verifier = makers(replace(STAGE, reward_model=SERVER))["rlhf"]()
    assert isinstance(verifier, RankingVerifier)
    verifier.close()


def test_a_domain_that_no_model_scores_is_refused() -> None:
    with pytest.raises(UserError, match=r"rlhf\.reward_model: expected none: 'math' is not scored by a judge"):
        makers(replace(STAGE, domain="math", reward_model=SERVER))


def test_a_bradley_terry_model_is_the_export_of_its_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    scorer = type("Scorer", (), {"concurrency": 2})
    monkeypatch.setattr(module, "BradleyTerryScorer", lambda *asked: opened.append(asked) or scorer())
    stage = replace(STAGE, reward_model=RewardModel(kind="bradley_terry", model="scorer", shaped=True))
    assert stage.models_read == {"reward_model.model": "scorer"}
    nodes = [ThisNode(ranks=2), ThisNode(ranks=2)]
    verifier = makers(stage, nodes)["rlhf"]()
    # on each rank's card of both nodes, in the dtype of the engines
    seats = [Seat(node, range(card, card + 1)) for node in nodes for card in (0, 1)]
    assert opened == [(Path("exports/scorer"), "bfloat16", Path("log"), seats)]
    assert isinstance(verifier, module.BradleyTerryVerifier) and verifier.shaped
    bonus = RewardModel(kind="bradley_terry", model="scorer", bonus=True)
    added = makers(replace(stage, domain="instruction_following", reward_model=bonus))["instruction_following"]()
    assert isinstance(added, BonusVerifier) and isinstance(added.verifier, InstructionFollowingVerifier)
    with pytest.raises(UserError, match=r"rlhf\.reward_model\.bonus: expected a domain whose verifier scores"):
        makers(replace(stage, domain="workplace", reward_model=bonus))


def test_where_engines_have_cards_of_their_own_a_judge_is_on_these(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not on those of the ranks, which learn meanwhile."""
    opened: list[Any] = []
    for name in ("BradleyTerryScorer", "open_judge"):
        monkeypatch.setattr(module, name, lambda *asked: opened.append(asked[-1]) or SimpleNamespace(concurrency=2))
    own = {"placement": "disaggregated", "engines": 2, "tensor": 2}
    ranks, engines, more = ThisNode(ranks=8), Host(name="a"), Host(name="b")
    for kind in ("bradley_terry", "engine"):
        stage = replace(STAGE, reward_model=RewardModel(kind=kind, model="exports/judge"))
        makers(stage, [ranks, engines, more], **own)["rlhf"]()
    assert opened == [[Seat(node, range(card, card + 1)) for node in (engines, more) for card in (0, 1)], engines]


def test_a_bradley_terry_model_behind_a_server_is_no_model_that_the_run_reads() -> None:
    served = RewardModel(kind="bradley_terry", model="rm-72b", url="http://127.0.0.1:9", concurrency=64, shaped=True)
    stage = replace(STAGE, reward_model=served, rollouts_per_prompt=8)
    assert stage.models_read == {}
    verifier = makers(stage)["rlhf"]()
    assert isinstance(verifier, module.BradleyTerryVerifier) and isinstance(verifier.scorer, PoolingClient)
    assert verifier.shaped and verifier.concurrency == 8
    verifier.close()
