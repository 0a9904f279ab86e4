"""The worker and the rules; with the package installed, also that its own answers score 1."""

import importlib.util
from contextlib import closing

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.rollouts import Outcome
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.rewards.verifiers.reasoning_gym import TASKS, ReasoningGymVerifier, given_answer, parse_row
from tests.rl_stages.rewards.verifiers.growth import superlinear

STAND_IN = """
import time

def get_score_answer_fn(name):
    def score(answer, entry):
        print("noise on stdout")
        if answer == "hang":
            time.sleep(600)
        if answer == "zzz":
            raise ValueError("as prime_factorization does")
        return 1.0 if answer == entry["answer"] else 0.2
    return score
"""
ROW = {"question": "What is the gcd of 4 and 6?", "answer": "2", "metadata": {"source_dataset": "gcd"}}


@pytest.fixture
def stand_in(monkeypatch, tmp_path):
    """A package of that name for the worker, and for `find_spec`."""
    (tmp_path / "reasoning_gym.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def scores(row, *texts, deadline_seconds=120.0):
    task = Task("t", "reasoning_gym", (), parse_row(row))
    with closing(ReasoningGymVerifier(deadline_seconds)) as verifier:
        return [verifier(task, text) for text in texts]


@pytest.mark.process
def test_only_full_marks_count_and_a_scorer_that_raises_or_hangs_is_a_wrong_answer(stand_in):
    right, partial, raising, empty = scores(ROW, "<answer>2</answer>", "3", "zzz", "")
    assert [verdict.score for verdict in (right, partial, raising)] == [1.0, 0.0, 0.0]
    assert "scores 0.2" in partial.detail
    assert "ValueError" in raising.detail
    assert empty.outcome is Outcome.WRONG_FORMAT
    hung, after = scores(ROW, "hang", "2", deadline_seconds=4.0)
    assert hung.score in (0.0, None)  # None where others kept it from its processor
    assert hung.detail.startswith("undecided after")
    assert after.score == 1.0


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>1</answer> no, <answer> 2 </answer> \\boxed{3}", "2"),
        ("It is \\boxed{3}.", "3"),
        ("just 4", "just 4"),
    ],
)
def test_the_last_tagged_answer_counts(text, answer):
    assert given_answer(text) == answer


def test_tags_are_found_in_a_time_linear_in_the_answer():
    assert not superlinear(given_answer, "<answer>", short_length=4000)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metadata": {}}, "expected 'metadata.source_dataset'"),
        ({"metadata": None}, "expected 'metadata.source_dataset'"),
        ({"metadata": {"source_dataset": "game_of_life_halting"}}, "found 'game_of_life_halting'"),
        ({"metadata": {"source_dataset": "n_queens"}}, "found 'n_queens'"),
        ({"answer": None}, "expected 'answer' to be text"),
        ({"question": 1}, "expected 'question' to be text"),
    ],
)
def test_rows_that_cannot_be_scored_are_refused(stand_in, change, message):
    with pytest.raises(UserError, match=message):
        parse_row(ROW | change)


def test_without_the_package_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"pip install reasoning-gym==0\.1\.25"):
        parse_row(ROW)


def test_own_answers_score_1_and_garbage_does_not_in_every_task():
    reasoning_gym = pytest.importorskip("reasoning_gym")
    slow = {"knight_swap", "figlet_font"}
    with closing(ReasoningGymVerifier()) as verifier:
        for name in sorted(TASKS - slow):
            row = dict(reasoning_gym.create_dataset(name, size=1, seed=3)[0])
            task = Task("t", "reasoning_gym", (), parse_row(row))
            given = [verifier(task, f"<answer>{text}</answer>").score for text in (row["answer"], "zzz")]
            assert given == [1.0, 0.0], name
