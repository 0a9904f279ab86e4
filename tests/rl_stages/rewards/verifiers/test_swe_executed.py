import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from cascade_rl.engine.core.rollouts import Outcome
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.lessons import swe_agentless as agentless_prompts
from cascade_rl.rl_stages.lessons import swe_executed as executed_prompts
from cascade_rl.rl_stages.rewards.swe.instance import parse_instance
from cascade_rl.rl_stages.rewards.swe.patch import Edit, edit_text
from cascade_rl.rl_stages.rewards.verifiers import swe_agentless
from cascade_rl.rl_stages.rewards.verifiers.swe_executed import SweExecutedVerifier
from cascade_rl.rl_stages.sandbox import Sandbox, SandboxFailure


def task_of(lesson, parse_row) -> Task:
    return Task(lesson.prompt, "swe", ({"role": "user", "content": lesson.prompt},), parse_row(lesson.fields))


def test_prompts_are_distinct_and_short():
    for module in (agentless_prompts, executed_prompts):
        lessons = list(module.lessons())
        assert len({lesson.prompt for lesson in lessons}) == len(lessons) >= 400
        assert max(len(lesson.prompt.split()) for lesson in lessons) <= 60


def test_agentless_lessons_are_right_and_wrong_as_they_say():
    rng = random.Random(1)
    with closing(swe_agentless.SweAgentlessVerifier()) as verifier:
        for lesson in agentless_prompts.lessons():
            task = task_of(lesson, swe_agentless.parse_row)
            right, wrong = verifier(task, lesson.right(rng)), verifier(task, lesson.wrong(rng))
            assert (right.score, wrong.score, wrong.outcome) == (1.0, 0.0, Outcome.COMPLETED)


@pytest.mark.sandbox
def test_executed_lessons_are_right_and_wrong_as_they_say():
    rng = random.Random(1)
    first_of_each = {lesson.fields["instance_id"].split("-")[0]: lesson for lesson in executed_prompts.lessons()}
    assert len(first_of_each) == 5
    with closing(SweExecutedVerifier()) as verifier, ThreadPoolExecutor(verifier.concurrency) as pool:

        def scores(lesson) -> tuple[float | None, float | None, Outcome]:
            task = task_of(lesson, parse_instance)
            right, wrong = verifier(task, lesson.right(rng)), verifier(task, lesson.wrong(rng))
            return right.score, wrong.score, wrong.outcome

        assert set(pool.map(scores, first_of_each.values())) == {(1.0, 0.0, Outcome.COMPLETED)}
        task = task_of(first_of_each["half"], parse_instance)
        assert verifier(task, "return n").outcome is Outcome.WRONG_FORMAT


def test_equal_patches_are_run_once_and_failures_are_not_remembered(monkeypatch):
    lesson = next(executed_prompts.lessons())
    task, answer = task_of(lesson, parse_instance), lesson.right(random.Random(1))
    runs = []
    run_command = Sandbox.run_command

    def counted(self, *arguments):
        runs.append(arguments)
        if len(runs) <= 2:
            raise SandboxFailure("no slot")
        return run_command(self, *arguments)

    monkeypatch.setattr(Sandbox, "run_command", counted)
    with closing(SweExecutedVerifier()) as verifier:
        assert verifier(task, answer).outcome is Outcome.INFRASTRUCTURE_FAILURE
        assert [verifier(task, text).score for text in (answer, answer, f"<think>x</think>{answer}")] == [1.0] * 3
    assert len(runs) == 3


@pytest.mark.sandbox
def test_rows_with_one_instance_id_are_graded_apart():
    """Their tests, their files or only their lists of tests differ."""
    repair = Edit("m.py", "def f(): return 1", "def f(): return 2")

    def task(test: str, **fields) -> Task:
        gold = "--- a/m.py\n+++ b/m.py\n@@ -1 +1 @@\n-def f(): return 1\n+def f(): return 3\n"
        snapshot = {"files": {"m.py": "def f(): return 1\n"}, "tests": {"tests/test_m.py": f"import m\n{test}"}}
        row = {"instance_id": "one", "problem_statement": "?", "repo_snapshot": snapshot, "gold_patch": gold, **fields}
        return Task("t", "swe_executed", (), parse_instance({"FAIL_TO_PASS": ["tests/test_m.py::test_f"], **row}))

    two, three = (f"def test_f(): assert m.f() == {number}\n" for number in (2, 3))
    both = two + "def test_g(): assert m.f() == 3\n"
    tasks = [task(two), task(three), task(both), task(both, FAIL_TO_PASS=["tests/test_m.py::test_g"])]
    with closing(SweExecutedVerifier(slots=1)) as verifier:
        assert [verifier(each, edit_text(repair)).score for each in tasks] == [1.0, 0.0, 1.0, 0.0]
