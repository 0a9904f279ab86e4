"""Which verifier a stage's configuration asks for; none of them is started before it is needed."""

from dataclasses import replace
from pathlib import Path

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.settings import RolloutConfig
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.config.reward_model import RewardModel
from cascade_rl.rl_stages.rewards.reward_models.bradley_terry.bonus import BonusVerifier
from cascade_rl.rl_stages.rewards.verifiers.instructions.instruction_following import InstructionFollowingVerifier
from cascade_rl.rl_stages.rewards.verifiers.judged.rlhf import RankingVerifier
from cascade_rl.rl_stages.scoring import reward_makers as module
from cascade_rl.rl_stages.scoring.reward_makers import reward_makers

STAGE = GrpoStage(name="rlhf", domain="rlhf", data=("generate:rlhf",), steps=1, token_budget=64)
SERVER = RewardModel(kind="server", model="judge", url="http://127.0.0.1:9")


def makers(stage: GrpoStage) -> dict[str, module.Maker]:
    return reward_makers(stage, lambda name: Path("exports") / name, RolloutConfig(), Path("log"))


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
    opened: list[Path] = []
    monkeypatch.setattr(module, "BradleyTerryScorer", opened.append)
    stage = replace(STAGE, reward_model=RewardModel(kind="bradley_terry", model="scorer", shaped=True))
    assert stage.models_read == {"reward_model.model": "scorer"}
    verifier = makers(stage)["rlhf"]()
    assert opened == [Path("exports/scorer")]
    assert isinstance(verifier, module.BradleyTerryVerifier) and verifier.shaped
    bonus = RewardModel(kind="bradley_terry", model="scorer", bonus=True)
    added = makers(replace(stage, domain="instruction_following", reward_model=bonus))["instruction_following"]()
    assert isinstance(added, BonusVerifier) and isinstance(added.verifier, InstructionFollowingVerifier)
    with pytest.raises(UserError, match=r"rlhf\.reward_model\.bonus: expected a domain whose verifier scores"):
        makers(replace(stage, domain="workplace", reward_model=bonus))
