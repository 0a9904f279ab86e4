"""The tokens that prompt and answer share, as a cascade's settings say."""

from dataclasses import replace

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.rollouts import Sampling
from cascade_rl.engine.core.settings import RolloutConfig
from cascade_rl.rl_stages.config.base import BaseModel, Evaluation
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.config.room import total_tokens

STAGE = GrpoStage(
    name="rl", domain="math", data=("generate:math",), steps=1, token_budget=1000, sampling=Sampling(max_new_tokens=600)
)


def cascade(*stages: GrpoStage, min_answer_tokens: int = 1, max_new_tokens: int = 500) -> Cascade:
    return Cascade(
        name="room",
        base=BaseModel(hf_config={}),
        stages=stages or (STAGE,),
        evaluation=Evaluation(
            domains=("math",),
            prompts_per_domain=1,
            max_new_tokens=max_new_tokens,
            min_answer_tokens=min_answer_tokens,
        ),
        rollout=RolloutConfig(max_model_len=1000),
    )


@pytest.mark.parametrize(("limit", "total"), [(None, 1000), (700, 700), (4000, 1000)])
def test_a_sample_ends_at_the_smaller_limit(limit: int | None, total: int) -> None:
    sampling = replace(STAGE.sampling, max_total_tokens=limit)
    assert total_tokens(sampling, RolloutConfig(max_model_len=1000)) == total


def test_a_prompt_leaves_the_least_answer() -> None:
    stage = replace(STAGE, sampling=Sampling(600, max_total_tokens=800), min_answer_tokens=300)
    assert cascade(stage).room(stage).longest_prompt == 500


def test_the_evaluation_has_room_in_every_stage() -> None:
    other = replace(STAGE, name="short", rollout=RolloutConfig(max_model_len=640))
    assert cascade(STAGE, other, min_answer_tokens=40).evaluation_room.longest_prompt == 600


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        (replace(STAGE, sampling=Sampling(1001)), r"rl\.sampling\.max_new_tokens: expected at most 1000"),
        (replace(STAGE, min_answer_tokens=601), r"rl\.min_answer_tokens: expected at most max_new_tokens = 600"),
        (replace(STAGE, sampling=Sampling(1000), min_answer_tokens=1000), "less than 1000"),
        (replace(STAGE, token_budget=999), r"rl\.token_budget: expected at least 1000"),
    ],
)
def test_lengths_that_cannot_work_together_are_refused(stage: GrpoStage, message: str) -> None:
    with pytest.raises(UserError, match=message):
        cascade(stage)
