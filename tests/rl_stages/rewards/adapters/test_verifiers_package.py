"""With CASCADE_VERIFIERS_PYTHON set, against the package itself: it is no dependency of ours."""

import os
import sys
from contextlib import closing
from pathlib import Path

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.rollouts import Outcome
from cascade_rl.rl_stages.rewards.adapters.verifiers_package import VARIABLE
from cascade_rl.rl_stages.tasks.domains import domain_named
from cascade_rl.rl_stages.tasks.load_tasks import parse_task

INSTALLED = pytest.mark.skipif(VARIABLE not in os.environ, reason=f"{VARIABLE} is not set")


def task(**columns):
    params = {"input": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say a word."}]}
    return parse_task(
        {"responses_create_params": params, "agent_ref": {"name": "verifiers:tiny-taskset"}, **columns}, "row", "t"
    )


@INSTALLED
@pytest.mark.process
def test_a_taskset_scores_the_answer(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).with_name("tiny_taskset")))
    row = task(task={"prompt": "Say a word.", "word": "hello"})
    with closing(domain_named(row.domain).verifier()) as verifier:
        right, wrong = verifier(row, "<think>hm</think>hello"), verifier(row, "bye")
        unfit = verifier(task(task={"prompt": "Say a word."}), "hello")
    assert (right.score, right.parts) == (0.5, {"said": 0.5, "letters": 5.0})
    assert (wrong.score, wrong.parts) == (0.0, {"said": 0.0, "letters": 3.0})
    assert unfit.outcome is Outcome.INFRASTRUCTURE_FAILURE
    assert "word" in unfit.detail


@pytest.mark.process
def test_an_environment_without_the_package_masks_the_sample(monkeypatch):
    monkeypatch.setenv(VARIABLE, sys.executable)
    row = task(task={})
    with closing(domain_named(row.domain).verifier()) as verifier:
        verdict = verifier(row, "hello")
    assert verdict.outcome is Outcome.INFRASTRUCTURE_FAILURE
    assert "tiny-taskset: exit code 1" in verdict.detail


@pytest.mark.parametrize("python", [None, "/no/such/python"])
def test_an_interpreter_that_is_not_there_is_a_user_error(monkeypatch, python):
    monkeypatch.delenv(VARIABLE, raising=False)
    if python:
        monkeypatch.setenv(VARIABLE, python)
    with pytest.raises(UserError, match=r"expected CASCADE_VERIFIERS_PYTHON.*pip install verifiers==0.4.0"):
        task(task={})
