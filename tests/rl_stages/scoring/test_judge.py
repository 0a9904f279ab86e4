"""A sample's text and verdict: the stop token is no text, and an answer that did not end is not looked at."""

import random
import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from cascade_rl.engine.cluster.node import ThisNode
from cascade_rl.engine.core.rollouts import Outcome, Rollout
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.core.verdict import Verdict
from cascade_rl.rl_stages.data.tokenizer import train_tokenizer
from cascade_rl.rl_stages.lessons import swe_executed
from cascade_rl.rl_stages.rewards.verifiers.programs.code_rows import parse_row
from cascade_rl.rl_stages.sandbox import Tier, cores
from cascade_rl.rl_stages.scoring.judge import Judge
from cascade_rl.rl_stages.tasks.load_tasks import load_tasks

MESSAGE = {"role": "user", "content": "What is 3 + 4?"}
TOKENIZER = train_tokenizer([[MESSAGE]])
MATH = Task("math-1", "math", (MESSAGE,), {"expected_answer": "7"})


@pytest.fixture
def judge() -> Iterator[Judge]:
    with Judge(TOKENIZER) as judge:
        yield judge


def verdict_on(judge: Judge, task: Task, answer: Rollout) -> tuple[str, Verdict]:
    return judge([task], [[answer]])[0][0]


def rollout(text: str, finish: str = "stop") -> Rollout:
    ids = TOKENIZER.encode(text, add_special_tokens=False) + [TOKENIZER.eos_token_id] * (finish == "stop")
    return Rollout("a", np.array([1]), np.array(ids), np.zeros(len(ids), np.float32), None, ((0, 0),), finish)


@pytest.mark.parametrize(
    ("text", "outcome", "score"),
    [
        ("3 + 4 = \\boxed{7}", Outcome.COMPLETED, 1.0),
        ("3 + 4 = \\boxed{8}", Outcome.COMPLETED, 0.0),
        ("It is 7", Outcome.WRONG_FORMAT, 0.0),
        ("", Outcome.WRONG_FORMAT, 0.0),
    ],
)
def test_a_finished_answer_is_verified(judge: Judge, text: str, outcome: Outcome, score: float) -> None:
    told, verdict = verdict_on(judge, MATH, rollout(text))
    assert told == text
    assert (verdict.outcome, verdict.score) == (outcome, score)


def test_a_truncated_answer_scores_nothing_even_when_right(judge: Judge) -> None:
    told, verdict = verdict_on(judge, MATH, rollout("3 + 4 = \\boxed{7}", finish="length"))
    assert told == "3 + 4 = \\boxed{7}"
    assert (verdict.outcome, verdict.score) == (Outcome.TRUNCATED, 0.0)
    assert judge.verifiers == {}


@pytest.mark.sandbox
def test_programs_run_on_the_cores_of_other_nodes_too() -> None:
    tests = {"inputs": ["3\n4\n"], "outputs": ["7\n"]}
    code = Task("code-1", "code", (MESSAGE,), parse_row({"verifier_metadata": {"unit_tests": tests}}))
    with Judge(TOKENIZER, others=[ThisNode()]) as judge:
        _, verdict = verdict_on(judge, code, rollout("```\nprint(int(input()) + int(input()))\n```"))
        assert verdict.score == 1.0
        assert judge.verifiers["code"].concurrency == 2 * cores()


@pytest.mark.sandbox
def test_golden_patches_score_1_and_empty_ones_0_in_every_tier(tier: Tier) -> None:
    """What showed 0.000 for every model on a machine without bubblewrap."""
    lessons = {lesson.prompt: lesson for lesson in swe_executed.lessons()}
    tasks = load_tasks("generate:swe_executed", split="heldout", seed=1)[:2]
    golden = [str(lessons[task.messages[0]["content"]].right(random.Random(1))) for task in tasks]
    empty = [re.sub(r"(SEARCH\n)(.*)(\n=+\n)(.*)", r"\1\2\3\2", answer) for answer in golden]
    with Judge(TOKENIZER) as judge:
        verdicts = judge([*tasks, *tasks], [[rollout(text)] for text in (*golden, *empty)])
    assert [verdict.score for ((_, verdict),) in verdicts] == [1.0] * 2 + [0.0] * 2
    assert {verdict.outcome for ((_, verdict),) in verdicts} == {Outcome.COMPLETED}


def test_each_domain_has_its_own_verifier(judge: Judge) -> None:
    constraint = {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
    fields = constraint | {"grading_mode": "binary", "reading": "strict"}
    task = Task("if-1", "instruction_following", (MESSAGE,), fields)
    assert verdict_on(judge, task, rollout("No comma here"))[1].score == 1.0
    assert verdict_on(judge, task, rollout("One, here"))[1].score == 0.0
    assert verdict_on(judge, MATH, rollout("\\boxed{7}"))[1].score == 1.0
    assert set(judge.verifiers) == {"instruction_following", "math"}


def test_verifiers_are_closed_with_the_judge() -> None:
    closed: list[str] = []

    class Closable:
        def close(self) -> None:
            closed.append("math")

    with Judge(TOKENIZER) as judge:
        judge.verifiers["math"] = Closable()  # type: ignore[assignment]
    assert closed == ["math"]


class Lengths:
    """Ranks answers by their length; the longer an answer, the longer a lone verdict takes."""

    concurrency = 4

    def __call__(self, task: Task, text: str) -> Verdict:
        time.sleep(0.02 * len(text))
        return Verdict.scored(float(len(text)))

    def close(self) -> None:
        pass


class Ranks(Lengths):
    def rank(self, task: Task, texts: Sequence[str]) -> list[Verdict]:
        return [Verdict.scored(float(sorted(texts, key=len).index(text))) for text in texts]


def ready(judge: Judge, verifier: Lengths) -> Judge:
    judge.verifiers["math"] = verifier
    judge.pools["math"] = ThreadPoolExecutor(verifier.concurrency)
    return judge


def test_verdicts_keep_the_order_of_the_answers_not_of_their_ends(judge: Judge) -> None:
    groups = [[rollout("aaaa"), rollout("b")], [rollout("cc", "length"), rollout("ddd")]]
    answers = ready(judge, Lengths())([MATH, MATH], groups)
    assert [[text for text, _ in group] for group in answers] == [["aaaa", "b"], ["cc", "ddd"]]
    assert [[verdict.score for _, verdict in group] for group in answers] == [[4, 1], [0, 3]]


def test_a_group_is_ranked_without_its_truncated_answers(judge: Judge) -> None:
    groups = [[rollout("aaaa"), rollout("bbbbbb", "length"), rollout("c")]]
    (answers,) = ready(judge, Ranks())([MATH], groups)
    assert [verdict.score for _, verdict in answers] == [1, 0, 0]
    assert answers[1][1].outcome is Outcome.TRUNCATED
