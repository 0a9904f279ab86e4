import re
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.rollouts import Outcome
from cascade_rl.rl_stages.rewards.adapters import ADAPTERS
from cascade_rl.rl_stages.rewards.adapters.reward_process import SHIM, ProcessVerifier
from cascade_rl.rl_stages.tasks.domains import domain_named
from cascade_rl.rl_stages.tasks.load_tasks import parse_task

FOLDER = str(Path(__file__).parent)


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", FOLDER)
    monkeypatch.syspath_prepend(FOLDER)


def row(function, kind="python", **columns):
    params = {"input": [{"role": "user", "content": "Say hello to me."}]}
    return {"responses_create_params": params, "agent_ref": {"name": f"{kind}:rewards:{function}"}, **columns}


def verdicts(function, *texts, kind="python", **columns):
    task = parse_task(row(function, kind, **columns), "row", "t")
    assert task.domain == f"{kind}:rewards:{function}"
    with closing(domain_named(task.domain).verifier()) as verifier:
        return verifier.rank(task, texts)


@pytest.mark.process
def test_a_function_of_trl_reads_the_answer_and_the_columns_of_its_row():
    long, short = verdicts("length", "<think>not this</think>abcd", "a", kind="python-answer", most=4)
    assert (long.score, short.score) == (1.0, 0.25)


@pytest.mark.process
def test_a_function_reads_the_reasoning_too():
    """huggingface/trl hands over the completion as it was sampled."""
    answers = ("<think>hm</think> <answer>7</answer>", "<answer>7</answer>", "<think>never ended")
    assert [verdict.score for verdict in verdicts("format_reward", *answers)] == [1.0, 0.0, 0.0]


@pytest.mark.process
def test_the_answers_to_a_prompt_are_one_batch():
    assert [verdict.score for verdict in verdicts("batch", "a", "b", "c", most=4)] == [3.3] * 3


@pytest.mark.process
def test_an_answer_on_which_the_function_fails_masks_no_other():
    right, failed, half = verdicts("one_fails", "a", "", "ab")
    assert (right.score, failed.score, half.score) == (1.0, None, 0.5)
    assert re.search(r"raised ZeroDivisionError: .* \(.*rewards\.py:\d+, in one_fails\)", failed.detail)


@pytest.mark.process
def test_coroutines_are_awaited_together():
    assert [verdict.score for verdict in verdicts("together", "a", "b", ground_truth="")] == [1.0, 1.0]


@pytest.mark.process
def test_prompts_are_scored_in_several_processes():
    task = parse_task(row("where"), "row", "t")
    with closing(domain_named(task.domain).verifier()) as verifier, ThreadPoolExecutor(2) as threads:
        first, second = threads.map(lambda _: verifier(task, "a").score, range(2))
        assert first != second
        assert {verifier(task, "a").score for _ in range(2)} <= {first, second}  # none starts while one is idle


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
        ("fails", "raised KeyError: 'solution' ("),
        ("too_few", "expected one reward for each of 1 completions; found 0"),
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
    command = [sys.executable, *SHIM, "function", "rewards:hangs"]
    with closing(ProcessVerifier(command, whole=True, seconds=0.5)) as verifier:
        verdict = verifier(task, "a")
        assert not any(process.worker for process in verifier._processes)
    assert verdict.outcome is Outcome.INFRASTRUCTURE_FAILURE
    assert "no reply within 0.5 s" in verdict.detail


@pytest.mark.parametrize("text", ["", "<think>never ended"])
def test_an_answer_that_is_none_is_a_wrong_format(text):
    assert verdicts("length", text, kind="python-answer", most=4)[0].outcome is Outcome.WRONG_FORMAT


@pytest.mark.parametrize("name", ["python:rewards", "python:no_such_package:f", "python:rewards:a b", "python:"])
def test_targets_that_cannot_be_are_refused_with_the_row(name):
    with pytest.raises(UserError, match=r"^file\.jsonl:3: expected "):
        parse_task(row("x") | {"agent_ref": {"name": name}}, "file.jsonl:3", "t")


@pytest.mark.process
@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("rewards:no_such_function", "AttributeError: module 'rewards' has no attribute 'no_such_function'"),
        ("rewards:neither", "TypeError: expected rewards:neither to take (prompts, completions, **columns), as in TRL"),
        ("broken_reward:score", "SyntaxError"),
    ],
)
def test_a_reward_that_cannot_be_called_is_refused_before_the_start(tmp_path, monkeypatch, target, said):
    (tmp_path / "broken_reward.py").write_text("def score(completions:\n")
    monkeypatch.setenv("PYTHONPATH", f"{FOLDER}:{tmp_path}")
    with pytest.raises(UserError, match=rf"(?s)^{target}: expected a reward that can be imported.*{re.escape(said)}"):
        ADAPTERS["python"].prove(target)


@pytest.mark.process
def test_a_reward_that_can_be_called_is_proven():
    ADAPTERS["python-answer"].prove("rewards:length")
