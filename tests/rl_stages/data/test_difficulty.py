"""The papers' difficulty filters, at the edges of what they state."""

from typing import Any

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.data.difficulty import PAPER_FILTERS, pass_rate
from cascade_rl.rl_stages.tasks.load_tasks import split_of


def row(scores: list[float], prompt: str = "q") -> dict[str, Any]:
    messages = [{"role": "user", "content": prompt}]
    return {"responses_create_params": {"input": messages}, "answer_scores": scores}


def kept(paper: str, right: int, answers: int, wrong: float = 0.0) -> bool:
    return PAPER_FILTERS[paper](row([1.0] * right + [wrong] * (answers - right))) is None


@pytest.mark.parametrize(
    ("paper", "answers", "expected"),
    [
        ("cascade1-math", 16, range(12)),  # solved less than 75 % of the time
        ("cascade1-code-easy", 8, range(8)),
        ("cascade1-code-hard", 8, range(1, 9)),
        ("cascade2-code", 8, range(8)),
    ],
)
def test_solved_answers_of_the_rows_that_stay(paper: str, answers: int, expected: range) -> None:
    assert [right for right in range(answers + 1) if kept(paper, right, answers)] == list(expected)


def test_swe_prompts_of_cascade_1_are_sometimes_similar_and_not_often() -> None:
    """Fewer than 4 of 8 above 0.5, and at least one above 0."""
    assert [kept("cascade1-swe", right, 8) for right in (0, 1, 3, 4)] == [False, True, True, False]
    assert kept("cascade1-swe", 0, 8, wrong=0.5)
    assert not kept("cascade1-swe", 4, 8, wrong=0.5)
    assert not kept("cascade1-swe", 0, 8, wrong=-1.0)


def test_a_tenth_of_the_unsolved_agentic_instances_stays_and_always_the_same() -> None:
    rule = PAPER_FILTERS["cascade2-swe-agentic"]
    rows = [row([0.0] * 16, f"issue {number}") for number in range(2000)]
    stays = [rule(found) is None for found in rows]
    assert stays == [rule(found) is None for found in rows]
    assert 160 < sum(stays) < 240
    heldout = [split_of(found["responses_create_params"]["input"]) == "heldout" for found in rows]
    assert 5 < sum(both for both in map(all, zip(stays, heldout, strict=True))) < 50  # not the same tenth
    assert kept("cascade2-swe-agentic", 1, 16) and not kept("cascade2-swe-agentic", 16, 16)


def test_a_pass_is_a_score_above_a_half() -> None:
    assert pass_rate([1, 0.51, 0.5, 0]) == 0.5


@pytest.mark.parametrize("scores", [None, [1.0] * 15, [True] * 16, ["1"] * 16])
def test_other_scores_are_an_error(scores: Any) -> None:
    with pytest.raises(UserError, match="expected 'answer_scores' to be 16 numbers, of answers of AceReason-7B; found"):
        PAPER_FILTERS["cascade1-math"](row(scores))
