"""Truncated answers under a Bradley-Terry model are scored as any other, on a scale that has no zero for them."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from cascade_rl.engine.core.rollouts import Outcome, Rollout
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.core.verdict import GroupVerifier
from cascade_rl.rl_stages.data.tokenizer import train_tokenizer
from cascade_rl.rl_stages.rewards.reward_models.bradley_terry.conversation import Conversation
from cascade_rl.rl_stages.rewards.reward_models.bradley_terry.shaping import tanh_of_z
from cascade_rl.rl_stages.rewards.reward_models.bradley_terry.verifier import BradleyTerryVerifier
from cascade_rl.rl_stages.rewards.reward_models.server_client import JudgeFailure
from cascade_rl.rl_stages.scoring.group_scoring import Group, score_groups
from cascade_rl.rl_stages.scoring.judge import Judge

MESSAGE = {"role": "user", "content": "I am Tom."}
TASK = Task("t", "rlhf", (MESSAGE,), {"principle": None})
TOKENIZER = train_tokenizer([[MESSAGE]])
STAGE = GrpoStage(name="rlhf", domain="rlhf", data=("generate:rlhf",), steps=1, token_budget=64)
SCORES = {"a": -6.9, "b": -7.7, "c": -8.1, "<think>Hm": -9.0}


class Scorer:
    """Gives each answer the score that stands for it; has none for any other."""

    concurrency = 3

    def score(self, conversations: Sequence[Conversation]) -> list[float]:
        try:
            return [SCORES[answer] for _, answer in conversations]
        except KeyError:
            raise JudgeFailure("gone") from None

    def close(self) -> None:
        pass


def verifier(shaped: bool) -> BradleyTerryVerifier:
    return BradleyTerryVerifier(Scorer(), shaped=shaped)


def rollout(text: str, finish: str = "stop") -> Rollout:
    ids = TOKENIZER.encode(text, add_special_tokens=False) + [TOKENIZER.eos_token_id] * (finish == "stop")
    return Rollout(text, np.array([1]), np.array(ids), np.zeros(len(ids), np.float32), None, ((0, 0),), finish)


@pytest.fixture(params=[False, True], ids=["raw", "shaped"])
def group(request: pytest.FixtureRequest) -> Iterator[tuple[bool, Group]]:
    answers = [rollout("<think>x</think> a"), rollout("b"), rollout("c"), rollout("<think>Hm", "length")]
    with Judge(TOKENIZER, {"rlhf": lambda: verifier(request.param)}) as judge:
        yield request.param, score_groups(STAGE, [TASK], [answers], judge([TASK], [answers]))[0]


def test_the_reward_of_a_truncated_answer_is_the_models_score_of_its_whole_text(group: tuple[bool, Group]) -> None:
    shaped, samples = group
    raw = list(SCORES.values())
    assert [sample.reward for sample in samples] == pytest.approx(tanh_of_z(raw) if shaped else raw)
    assert [sample.verdict.parts["reward_model"] for sample in samples] == raw
    assert [sample.verdict.outcome for sample in samples] == [Outcome.COMPLETED] * 3 + [Outcome.TRUNCATED]
    assert min(samples, key=lambda sample: sample.advantage) is samples[-1]  # a score of 0 would be the best by far
    assert samples[-1].advantage < -1


def test_a_scorer_without_an_answer_gives_no_score_to_anybody() -> None:
    verdicts = verifier(shaped=False).rank(TASK, ["a", "unknown"])
    assert {verdict.outcome for verdict in verdicts} == {Outcome.INFRASTRUCTURE_FAILURE}
    with Judge(TOKENIZER, {"rlhf": lambda: verifier(shaped=True)}) as judge:
        ((answer,),) = judge([TASK], [[rollout("unknown", "length")]])
    assert (answer.verdict.outcome, answer.verdict.score) == (Outcome.INFRASTRUCTURE_FAILURE, None)


def test_it_takes_as_many_groups_at_once_as_the_scorer() -> None:
    assert isinstance(made := verifier(shaped=False), GroupVerifier)
    assert made.concurrency == 3
