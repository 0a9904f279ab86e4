"""From a stage's configuration to the verdicts on its samples."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.rollouts import Outcome, Rollout, Sampling
from cascade_rl.engine.core.settings import RolloutConfig
from cascade_rl.rl_stages.config.base import BaseModel, Evaluation
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.config.reward_model import GenRm, RewardModel
from cascade_rl.rl_stages.config.sft_stage import SftStage
from cascade_rl.rl_stages.config.text import from_plain, override, to_yaml
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.data.tokenizer import train_tokenizer
from cascade_rl.rl_stages.rewards.reward_models.open_judge import open_judge
from cascade_rl.rl_stages.run.run_folder import RunFolder
from cascade_rl.rl_stages.run.stage_graph import content_hashes, dependencies
from cascade_rl.rl_stages.scoring.judge import Judge
from cascade_rl.rl_stages.tasks.domains import DOMAINS

from .fake_judge import FakeJudge

SFT = SftStage(name="sft", domain="rlhf", data=("generate:genrm@1.0",), steps=3, token_budget=512)
OTHER = replace(SFT, name="other", parent="base")
RLHF = GrpoStage(
    name="rlhf",
    domain="rlhf",
    data=("generate:rlhf",),
    steps=2,
    token_budget=512,
    sampling=Sampling(max_new_tokens=24),
    parent="other",
)
MESSAGE = {"role": "user", "content": "I am Tom."}
CONSTRAINT = {"instruction_id_list": ["keywords:existence"], "kwargs": [{"keywords": ["Tom"]}]}
FIELDS = {"principle": None, "grading_mode": "fraction", "reading": "strict", **CONSTRAINT}
TOKENIZER = train_tokenizer([[MESSAGE]])


def cascade(**changes: Any) -> Cascade:
    return Cascade(
        name="tiny",
        base=BaseModel(hf_config={"hidden_size": 64}),
        rollout=RolloutConfig(max_model_len=64),
        evaluation=Evaluation(domains=("rlhf",), prompts_per_domain=8, max_new_tokens=24),
        stages=(
            SFT,
            OTHER,
            replace(RLHF, reward_model=RewardModel(**{"kind": "engine", "model": "sft", "max_tokens": 24} | changes)),
        ),
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "rlhf"}, "rlhf.reward_model.model: expected the name of an earlier stage (sft, other) or a Hugging"),
        ({"model": "best"}, "rlhf.reward_model.model: expected the name of an earlier stage"),
        ({"url": "http://x"}, "reward_model.url: expected a URL for a server"),
        ({"kind": "server"}, "reward_model.url: expected a URL for a server"),
        (
            {"kind": "bradley_terry", "url": "http://x/v1"},
            "reward_model.url: expected the address of a pooling",
        ),
        ({"genrm": GenRm(offsets=())}, "reward_model.genrm.offsets: expected numbers above 0"),
        ({"genrm": GenRm(offsets=(0, 1))}, "reward_model.genrm.offsets: expected numbers above 0"),
        ({"max_tokens": 64}, "rlhf.reward_model.max_tokens: expected less than rollout.max_model_len = 64"),
        ({"bonus": True}, "reward_model.bonus: expected false, or kind bradley_terry"),
        ({"kind": "bradley_terry", "bonus": True, "shaped": True}, "reward_model.bonus: expected false"),
        ({"deadline_seconds": 0.0}, "reward_model.deadline_seconds: expected more than 0"),
        ({"urls": "x"}, "RewardModel has no key 'urls'. Did you mean 'url'?"),
    ],
)
def test_a_reward_model_that_cannot_be_is_told(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        cascade(**changes)
    assert message in str(error.value)


def test_a_model_that_draws_nothing_has_any_limit() -> None:
    judge = cascade(kind="bradley_terry", max_tokens=16_384).stages[2]
    assert isinstance(judge, GrpoStage) and judge.reward_model and judge.reward_model.max_tokens == 16_384


def test_it_is_text_and_can_be_set() -> None:
    tree = cascade(genrm=GenRm(offsets=(1, 2)))
    assert from_plain(yaml.safe_load(to_yaml(tree))) == tree
    changed = override(tree, ["rlhf.reward_model.genrm.terms.answer=0.3", "rlhf.reward_model.temperature=0"])
    assert isinstance(changed.stages[2], GrpoStage) and changed.stages[2].reward_model
    assert changed.stages[2].reward_model.genrm.terms.answer == 0.3
    assert changed.stages[2].reward_model.temperature == 0


def test_a_stage_depends_on_the_stage_that_judges_it(tmp_path: Path) -> None:
    tree = cascade()
    assert [stage.name for stage in dependencies(tree, tree.stages[2])] == ["sft", "other"]
    retrained = replace(tree, stages=(replace(SFT, steps=4), *tree.stages[1:]))
    assert content_hashes(tree)["rlhf"] != content_hashes(retrained)["rlhf"]
    assert RunFolder(tmp_path, tree).model("sft") == tmp_path / "stages/01_sft/export"
    assert RunFolder(tmp_path, tree).model("/models/genrm") == Path("/models/genrm")


def rollout(text: str) -> Rollout:
    ids = [*TOKENIZER.encode(text, add_special_tokens=False), TOKENIZER.eos_token_id]
    return Rollout(text, np.array([1]), np.array(ids), np.zeros(len(ids), np.float32), None, ((0, 0),), "stop")


def test_the_model_scores_training_and_the_row_scores_held_out_answers(server: FakeJudge, tmp_path: Path) -> None:
    server.reply = lambda _: '{"score_1": 5, "score_2": 2, "ranking": 1}'
    settings = RewardModel(kind="server", model="judge", url=server.url, genrm=GenRm(prompt="plain", offsets=(1,)))
    ranked = DOMAINS["rlhf"].judged
    assert ranked

    def maker() -> Any:
        return ranked(open_judge(settings, None, RolloutConfig(), tmp_path / "log"), settings, 2)

    task = Task("t", "rlhf", (MESSAGE,), FIELDS)
    samples = [[rollout("Hello Tom"), rollout("Hello")]]
    with Judge(TOKENIZER, {"rlhf": maker}) as rewards, Judge(TOKENIZER) as judge:
        ((first, second),) = rewards([task], samples)
        assert [verdict.parts["base"] for _, verdict in (first, second)] == [3.5, 3.5]  # each once first
        assert [verdict.score for _, verdict in judge([task], samples)[0]] == [1.0, 0.0]
        server.reply = lambda _: 500
        assert {verdict.outcome for _, verdict in rewards([task], samples)[0]} == {Outcome.INFRASTRUCTURE_FAILURE}
    assert server.requests[0]["max_tokens"] == 16_384 and server.requests[0]["temperature"] == 0.6
