"""What `cascade bench verify` measures; the figures themselves are printed by the command."""

import os
import time
from contextlib import closing

import pytest

from cascade_rl.launchers.bench.verify import cases, interpret, measure
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.core.verdict import Verdict

TASK = Task("t", "mcqa", (), {})


class Busy:
    """Fifty milliseconds of a child's processor time a check, or fifty of nobody's."""

    concurrency = 1

    def __call__(self, task: Task, text: str) -> Verdict:
        if text == "wait":
            time.sleep(0.05)
        elif child := os.fork():
            os.waitpid(child, 0)
        else:
            spend(0.05)
            os._exit(0)
        return Verdict.infrastructure_failure("down") if text == "fail" else Verdict.scored(1.0)

    def close(self) -> None:
        pass


def spend(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


@pytest.mark.process
def test_the_rate_counts_the_processor_time_of_children_too() -> None:
    row = measure("busy", Busy(), [(TASK, "work")], seconds=0.5)
    assert row.per_core_second < 25  # thousands without the child
    assert row.p99_ms >= 50


def test_the_rate_leaves_out_the_time_that_nobody_computes() -> None:
    row = measure("idle", Busy(), [(TASK, "wait")], seconds=0.5)
    assert row.per_core_second > 100
    assert row.p99_ms >= 50


@pytest.mark.process
def test_a_check_that_fails_to_judge_is_no_measurement() -> None:
    with pytest.raises(AssertionError, match="down"):
        measure("busy", Busy(), [(TASK, "fail")], seconds=0.1)


@pytest.mark.parametrize("name", ["instruction following", "multiple choice", "tool call"])
def test_answers_are_right_and_wrong(name: str) -> None:
    verifier, answers = cases()[name]()
    with closing(verifier):
        assert {verifier(task, text).score for task, text in answers} == {0.0, 1.0}


@pytest.mark.process
def test_an_interpreter_adds() -> None:
    assert interpret(b"3 4\n") == b"7\n"
