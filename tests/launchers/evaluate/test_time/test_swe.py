"""Repairs chosen by tests that the model wrote and by those of the repository, run in real boxes."""

import random
from collections.abc import Callable, Iterator
from itertools import islice

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.launchers.evaluate.test_time.methods import Method
from cascade_rl.launchers.evaluate.test_time.swe import REQUEST
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.lessons import swe_executed
from cascade_rl.rl_stages.lessons.swe_agentless import FILE
from cascade_rl.rl_stages.rewards.swe.grading import run_tests
from cascade_rl.rl_stages.rewards.swe.instance import Instance
from cascade_rl.rl_stages.rewards.swe.repository import Repository
from cascade_rl.rl_stages.rewards.verifiers.swe_executed import SweExecutedVerifier
from cascade_rl.rl_stages.sandbox import Sandbox
from cascade_rl.rl_stages.tasks.load_tasks import parse_task
from tests.launchers.evaluate.test_time.test_methods import Played, no_grader

# "next" adds one; the repository adds three. Its own tests all fail before the repair, but for `same`.
LESSON = next(lesson for lesson in swe_executed.lessons() if lesson.fields["instance_id"] == "next-3-a-4")
RIGHT, WRONG = LESSON.right(random.Random(0)), LESSON.wrong(random.Random(1))
BREAKS = str(RIGHT).replace("return a + 1", "raise ValueError(a + 1)")
MODULE = f"from {FILE.removesuffix('.py')} import next as step\n\n\ndef test_it():\n    assert "
TESTS = {
    "reproduces": f"```python\n{MODULE}step(4) == 5\n```",
    "passes before": f"```python\n{MODULE}step(4) == 7\n```",
    "never passes": f"First a plan.\n```\nplan\n```\nThen\n```python\n{MODULE}step(4) == 0\n```",
    "cannot be imported": "```python\nimport nowhere\n\n\ndef test_it():\n    assert False\n```",
    "no module": "I cannot.",
}


def task() -> Task:
    row = LESSON.row("swe_executed")
    row["repo_snapshot"]["tests"]["test_same.py"] = f"{MODULE}step(0) > 0\n"
    row["PASS_TO_PASS"].append("test_same.py::test_it")
    return parse_task(row, "lesson", "0")


def model(repairs: list[str], tests: list[str]) -> Callable[[str, int], str]:
    return lambda prompt, place: (tests if REQUEST in prompt else repairs)[place]


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(2) as sandbox:
        yield sandbox


@pytest.mark.sandbox
@pytest.mark.long
@pytest.mark.parametrize(
    ("repairs", "tests", "chosen"),
    [
        ([WRONG, WRONG, RIGHT, "no patch"], list(TESTS.values()), RIGHT),  # one test that reproduces beats two votes
        ([WRONG, RIGHT, RIGHT], ["passes before", "no module"], RIGHT),  # equal in tests: the votes decide
        ([BREAKS, BREAKS, WRONG], ["never passes"], WRONG),  # a regression
        (["no patch", "nor this"], ["reproduces"], "no patch"),
    ],
)
def test_tests_and_then_votes_choose_the_repair(
    sandbox: Sandbox, repairs: list[str], tests: list[str], chosen: str
) -> None:
    written = [TESTS.get(name, name) for name in tests]

    def test(repository: Repository) -> object:
        return run_tests(repository, sandbox)

    method = f"swe:repairs={len(repairs)},tests={len(tests)}"
    found = Played(method, task(), model(repairs, written), no_grader, test)  # type: ignore[arg-type]
    assert found.answer == chosen
    hidden = Instance.of(task().metadata).repository.tests
    assert all(
        tested.tests.keys() <= {*hidden, *(f"test_reproduction_{n}.py" for n in range(5))} for tested in found.tested
    )


@pytest.mark.sandbox
@pytest.mark.long
def test_what_is_chosen_is_graded_by_the_hidden_tests(sandbox: Sandbox) -> None:
    verifier = SweExecutedVerifier(1)
    assert [verifier(task(), str(answer)).score for answer in (RIGHT, WRONG)] == [1.0, 0.0]
    verifier.close()


def test_a_repository_is_needed_and_the_published_numbers_are_the_default() -> None:
    assert Method.parse("swe").told == "swe:repairs=32,tests=40"
    other = next(islice(swe_executed.lessons(), 1))
    with pytest.raises(UserError, match="expected a task of swe_executed, whose repository can be run; found math"):
        Played("swe", Task("t", "math", (), other.fields), lambda *_: "", no_grader)
