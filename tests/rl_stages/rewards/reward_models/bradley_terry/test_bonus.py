"""The reward of right answers with a reward model's taste beside the rules, against numbers worked out by hand."""

import math
from collections.abc import Sequence
from typing import Any

import pytest

from cascade_rl.engine.core.rollouts import Outcome
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.core.verdict import Verdict
from cascade_rl.rl_stages.rewards.reward_models.bradley_terry.bonus import BonusVerifier
from cascade_rl.rl_stages.rewards.reward_models.server_client import JudgeFailure
from cascade_rl.rl_stages.rewards.verifiers.instructions.instruction_following import (
    InstructionFollowingVerifier,
    parse_row,
)

QUESTION = ({"role": "user", "content": "Say cup or shell."},)
CONSTRAINTS = {"instruction_id_list": ["punctuation:no_comma", "keywords:existence"]}
CONSTRAINTS |= {"kwargs": [{}, {"keywords": ["cup"]}], "grading_mode": "fraction"}  # type: ignore[dict-item]
TASK = Task("t", "instruction_following", QUESTION, parse_row(CONSTRAINTS))


class Scorer:
    """Gives each answer the score that stands for it; dies of any other."""

    concurrency = 2

    def __init__(self, **scores: float) -> None:
        self.scores, self.closed = scores, False

    def score(self, asked: Sequence[tuple[Any, str]]) -> list[float]:
        assert all(messages == QUESTION for messages, _ in asked)
        try:
            return [self.scores[answer.split()[-1]] for _, answer in asked]
        except KeyError:
            raise JudgeFailure("gone") from None

    def close(self) -> None:
        self.closed = True


def rank(scorer: Scorer, *texts: str) -> list[Verdict]:
    return BonusVerifier(InstructionFollowingVerifier(), scorer).rank(TASK, texts)


def test_a_right_answer_has_one_and_the_sigmoid_of_its_z_score_and_any_other_nothing() -> None:
    """Scores 1, 4, 7, 8: mean 5, deviation sqrt((16 + 1 + 4 + 9) / 3) = sqrt(10)."""
    verdicts = rank(
        Scorer(low=1.0, high=7.0, half=8.0, format=4.0), "cup low", "cup high", "cup, half", "<think> format"
    )
    spread = math.sqrt(10) + 1e-6
    expected = [1 + 1 / (1 + math.exp(4 / spread)), 1 + 1 / (1 + math.exp(-2 / spread)), 0.0, 0.0]
    assert [verdict.score for verdict in verdicts] == pytest.approx(expected, rel=1e-12)
    assert expected[:2] == pytest.approx([1.2201, 1.6530], abs=1e-4)
    assert [verdict.outcome for verdict in verdicts] == [Outcome.COMPLETED] * 3 + [Outcome.WRONG_FORMAT]
    assert verdicts[2].parts["verifier"] == 0.5 and verdicts[2].parts["reward_model"] == 8.0


def test_one_answer_has_no_taste_and_no_scorer_no_verdict() -> None:
    assert rank(Scorer(low=1.0), "cup low")[0].score == 1.5
    verdicts = rank(Scorer(), "cup low", "no")
    assert {verdict.outcome for verdict in verdicts} == {Outcome.INFRASTRUCTURE_FAILURE}


def test_it_closes_what_it_has() -> None:
    scorer = Scorer()
    bonus = BonusVerifier(InstructionFollowingVerifier(), scorer)
    bonus.close()
    assert scorer.closed
