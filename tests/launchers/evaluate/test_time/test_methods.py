"""Each method on generated problems, whose own verifiers grade. The model is a function of the prompt, so that what a
method asks, and what it does with the answers, is seen."""

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.rollouts import Rollout
from cascade_rl.launchers.evaluate.test_time.compare import REQUEST as COMPARE
from cascade_rl.launchers.evaluate.test_time.methods import METHODS, Method
from cascade_rl.launchers.evaluate.test_time.proofs import REFINE, VERIFY
from cascade_rl.launchers.evaluate.test_time.refine import REQUEST as REPAIR
from cascade_rl.launchers.evaluate.test_time.steps import Ask, Grade, Reply, RunTests
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.core.verdict import Verdict, Verifier
from cascade_rl.rl_stages.rewards.swe.grading import TestRun
from cascade_rl.rl_stages.rewards.swe.repository import Repository
from cascade_rl.rl_stages.tasks.domains import domain_named, lessons_of
from cascade_rl.rl_stages.tasks.load_tasks import parse_task

EMPTY = np.zeros(0, np.int64)
NOTHING = Rollout("r", EMPTY, EMPTY, EMPTY.astype(np.float32), None, ((0, 0),), "stop")


def problem(domain: str, number: int = 0) -> tuple[Task, str]:
    """A task, and an answer that its verifier passes."""
    lesson = next(islice(lessons_of(domain), 40 + number, None))
    answer = lesson.right(random.Random(0))
    assert isinstance(answer, str)
    return parse_task(lesson.row(domain), "lesson", str(number)), answer


@pytest.fixture(scope="module")
def verifier() -> Iterator[Verifier]:
    make = domain_named("math").verifier
    assert make
    with_processes = make()
    yield with_processes
    with_processes.close()


class Played:
    """What a method hands in, and all that it asked."""

    def __init__(
        self,
        method: str,
        task: Task,
        model: Callable[[str, int], str],
        grade: Callable[[str], Verdict],
        test: Callable[[Repository], TestRun] | None = None,
    ) -> None:
        self.prompts: list[str] = []
        self.graded: list[str] = []
        self.tested: list[Repository] = []
        steps, found = Method.parse(method).begin(task), None
        try:
            while True:
                step = steps.send(found)
                found = self._answered(step, model, grade, test)
        except StopIteration as end:
            self.answer = end.value.answer

    def _answered(self, step: Any, model: Any, grade: Any, test: Any) -> object:
        if isinstance(step, RunTests):
            self.tested += step.repositories
            return list(map(test, step.repositories))
        return self._graded(step, grade) if isinstance(step, Grade) else self._replies(step, model)

    def _graded(self, step: Grade, grade: Callable[[str], Verdict]) -> list[Verdict]:
        self.graded += [reply.answer for reply in step.replies]
        return [grade(reply.answer) for reply in step.replies]

    def _replies(self, asks: Sequence[Ask], model: Callable[[str, int], str]) -> list[list[Reply]]:
        groups = []
        for ask in asks:
            prompt = ask.messages[-1]["content"]
            self.prompts += [prompt] * ask.count
            texts = [model(prompt, place) for place in range(ask.count)]
            groups.append([Reply(NOTHING, text, text) for text in texts])
        return groups


def no_grader(text: str) -> Verdict:
    raise AssertionError(f"nobody may ask for a verdict on {text}")


@pytest.mark.parametrize("number", range(4))
def test_a_vote_ends_with_what_most_say(verifier: Verifier, number: int) -> None:
    task, right = problem("math", number)

    def model(_: str, place: int) -> str:
        return right if place % 2 else f"\\boxed{{{place}9999}}"

    found = Played("vote:generations=7", task, model, no_grader)
    assert verifier(task, found.answer).score == 1.0
    assert len(found.prompts) == 7


def test_a_vote_without_an_answer_hands_in_what_there_is() -> None:
    assert Played("vote:generations=2", problem("math")[0], lambda *_: "", no_grader).answer == ""


def test_a_vote_needs_answers_that_can_be_counted() -> None:
    with pytest.raises(UserError, match="expected a task of math or mcqa, whose answers can be counted; found code"):
        Played("vote", problem("code")[0], lambda *_: "x", no_grader)


@pytest.mark.parametrize(("generations", "comparisons"), [(1, 0), (2, 1), (5, 3), (16, 8)])
def test_a_comparison_leaves_the_one_that_wins_each_heat(
    verifier: Verifier, generations: int, comparisons: int
) -> None:
    """The model knows the right answer when it sees it, though it finds it in one of the replies alone."""
    task, right = problem("math")

    def model(prompt: str, place: int) -> str:
        if COMPARE not in prompt:
            return right if place == generations - 1 else f"\\boxed{{{place}9999}}"
        shown = re.findall(r"^\[solution (\d+)\]\n(.*)$", prompt, re.MULTILINE)
        return next((f"I choose \\boxed{{{number}}}" for number, text in shown if text == right), "none is right")

    found = Played(f"compare:generations={generations},shown=3", task, model, no_grader)
    assert verifier(task, found.answer).score == 1.0
    assert len(found.prompts) == generations + comparisons


@pytest.mark.parametrize("number", range(3))
def test_a_contest_goes_on_from_its_submissions_and_ends_with_the_first_that_is_right(
    verifier: Verifier, number: int
) -> None:
    """The model counts up from its last submission, so that it needs as many rounds as it is wrong."""
    task, right = problem("math", number)
    [value] = re.findall(r"boxed\{(\d+)\}", right)

    def model(prompt: str, place: int) -> str:
        tried = map(int, re.findall(r"boxed\{(-?\d+)\}\n\[judge: score 0, completed\]", prompt))
        return f"\\boxed{{{max(tried, default=int(value) - 4) + 1}}}"

    def grade(text: str) -> Verdict:
        return verifier(task, text)

    found = Played("ioi:generations=2,rounds=9", task, model, grade)
    assert verifier(task, found.answer).score == 1.0
    assert len(found.graded) == 4  # one a round
    assert [REPAIR in prompt for prompt in found.prompts] == [False] * 2 + [True] * 6
    assert all(task.messages[0]["content"] in prompt for prompt in found.prompts)
    stopped = Played("ioi:generations=2,rounds=2", task, model, grade)
    assert (len(stopped.graded), verifier(task, stopped.answer).score) == (2, 0.0)


def test_equal_programs_are_handed_in_once_and_a_prompt_shows_the_best() -> None:
    scores = {"a": 0.2, "b": 0.7, "c": 0.1}

    def grade(text: str) -> Verdict:
        return Verdict.scored(scores[text]) if text in scores else Verdict.infrastructure_failure("no box")

    method = "icpc:generations=8,rounds=2,submissions=3,shown=2"
    found = Played(method, problem("math")[0], lambda _, place: "aabbcdcd"[place], grade)
    assert found.graded == ["a", "b", "c", "d"]
    assert found.answer == "b"
    listed = re.findall(r"\[submission \d\]\n(\w)\n\[judge: (.*)\]", found.prompts[-1])
    assert listed == [("a", "score 0.2, completed"), ("b", "score 0.7, completed")]


def test_proofs_are_refined_where_reviews_find_fault() -> None:
    """A proof has a level, which a review sees. A refinement is one level better."""
    seen: Counter[str] = Counter()

    def model(prompt: str, place: int) -> str:
        if VERIFY in prompt:
            seen["verify"] += 1
            level = int(re.findall(r"level (\d)", prompt)[-1])
            return f"step {level + 1} does not hold \\boxed{{{min(level, 2) / 2:g}}}" if place else "no grade"
        if REFINE in prompt:
            seen["refine"] += 1
            assert prompt.count("does not hold") == 2
            return f"level {int(re.findall(r'level (\d)', prompt)[-1]) + 1}"
        return "level 0" if place else ""

    method = "proofs:generations=4,verifications=3,kept=2,analyses=2,refinements=2,rounds=5,enough=0.99"
    found = Played(method, problem("math")[0], model, no_grader)
    assert found.answer == "level 2"
    # three proofs; two rounds of two refinements of each of two proofs; a reply without a proof is not verified
    assert seen == {"verify": (3 + 4 + 4) * 3, "refine": 4 + 4}


def test_the_published_numbers_are_the_default() -> None:
    assert Method.parse("ioi").told == "ioi:generations=40,rounds=50,submissions=1,shown=8"
    assert Method.parse("proofs:rounds=2").told.endswith("refinements=4,rounds=2,enough=0.99999")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("votes", f"--method: expected one of {', '.join(METHODS)}; found 'votes'"),
        ("vote:rounds=2", "--method vote: expected settings of generations; found 'rounds'"),
        ("vote:generations=x", "--method vote: expected generations to be a number; found 'x'"),
        ("vote:generations=0", "--method vote: expected generations to be above 0; found 0"),
    ],
)
def test_what_is_wrong_is_named(text: str, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        Method.parse(text)
