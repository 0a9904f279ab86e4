from contextlib import closing
from pathlib import Path

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.rollouts import Outcome
from cascade_rl.rl_stages.tasks.domains import domain_named
from cascade_rl.rl_stages.tasks.load_tasks import parse_task

FOLDER = str(Path(__file__).parent)


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", FOLDER)
    monkeypatch.syspath_prepend(FOLDER)


def row(function, **columns):
    params = {"input": [{"role": "user", "content": "Say hello to me."}]}
    return {"responses_create_params": params, "agent_ref": {"name": f"python:rewards:{function}"}, **columns}


def verdicts(function, *texts, **columns):
    task = parse_task(row(function, **columns), "row", "t")
    assert task.domain == f"python:rewards:{function}"
    with closing(domain_named(task.domain).verifier()) as verifier:
        return [verifier(task, text) for text in texts]


@pytest.mark.process
def test_a_function_of_trl_reads_the_answer_and_the_columns_of_its_row():
    long, short = verdicts("length", "<think>not this</think>abcd", "a", most=4)
    assert (long.score, short.score) == (1.0, 0.25)


@pytest.mark.process
def test_a_function_of_trl_without_columns_reads_the_prompt():
    assert verdicts("prompt_words", "a", most=4)[0].score == 4.0


@pytest.mark.process
def test_a_coroutine_is_awaited():
    assert verdicts("later", "a")[0].score == 0.25


@pytest.mark.process
def test_a_function_of_verl_gives_a_score_and_parts():
    right, wrong = verdicts("compute_score", "7", "70", data_source="gsm", reward_model={"ground_truth": "7"})
    assert (right.score, right.parts) == (1.0, {"length": 1.0})
    assert wrong.score == 0.0
    assert verdicts("compute_score", "8", ground_truth="8")[0].score == 1.0


@pytest.mark.process
@pytest.mark.parametrize(
    ("function", "detail"),
    [
        ("unsure", "returned None"),
        ("fails", "raised KeyError: 'solution'"),
        ("infinite", "expected a finite reward"),
        ("dies", "exit code 3"),
        ("neither", "exit code 1"),
    ],
)
def test_no_reward_masks_the_sample(function, detail):
    first, second = verdicts(function, "a", "b")
    for verdict in (first, second):
        assert (verdict.outcome, verdict.score) == (Outcome.INFRASTRUCTURE_FAILURE, None)
        assert detail in verdict.detail


@pytest.mark.process
def test_a_function_that_hangs_is_killed_and_masks_the_sample():
    task = parse_task(row("hangs"), "row", "t")
    verifier = domain_named(task.domain).verifier()
    verifier._deadline = 0.5
    with closing(verifier):
        verdict = verifier(task, "a")
        assert verifier._worker is None
    assert verdict.outcome is Outcome.INFRASTRUCTURE_FAILURE
    assert "no reply within 0.5 s" in verdict.detail


@pytest.mark.parametrize("text", ["", "<think>never ended"])
def test_an_answer_that_is_none_is_a_wrong_format(text):
    assert verdicts("length", text, most=4)[0].outcome is Outcome.WRONG_FORMAT


@pytest.mark.parametrize("name", ["python:rewards", "python:no_such_package:f", "python:rewards:a b", "python:"])
def test_targets_that_cannot_be_are_refused_with_the_row(name):
    with pytest.raises(UserError, match=r"^file\.jsonl:3: expected "):
        parse_task(row("x") | {"agent_ref": {"name": name}}, "file.jsonl:3", "t")
