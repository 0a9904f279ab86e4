"""A sample's text and verdict: the stop token is no text, and an answer that did not end is not looked at."""

import random
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from threading import Event

import numpy as np
import pytest

from cascade_rl.engine.cluster.node import ThisNode
from cascade_rl.engine.core.rollouts import Outcome, Rollout
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.core.verdict import Verdict, Verifier
from cascade_rl.rl_stages.data.tokenizer import train_tokenizer
from cascade_rl.rl_stages.lessons import swe_executed
from cascade_rl.rl_stages.rewards.verifiers.programs.code_rows import parse_row
from cascade_rl.rl_stages.run.ledger import Ledger
from cascade_rl.rl_stages.sandbox import Tier, cores
from cascade_rl.rl_stages.scoring import judge as judge_module
from cascade_rl.rl_stages.scoring.judge import Judge
from cascade_rl.rl_stages.tasks.load_tasks import load_tasks

MESSAGE = {"role": "user", "content": "What is 3 + 4?"}
TOKENIZER = train_tokenizer([[MESSAGE]])
NUMBERS = count()
TIMEOUT = 60.0
MATH = Task("math-1", "math", (MESSAGE,), {"expected_answer": "7"})


@pytest.fixture
def judge() -> Iterator[Judge]:
    with Judge(TOKENIZER) as judge:
        yield judge


def verdict_on(judge: Judge, task: Task, answer: Rollout) -> tuple[str, Verdict]:
    return judge([task], [[answer]])[0][0]


def rollout(text: str, finish: str = "stop") -> Rollout:
    ids = TOKENIZER.encode(text, add_special_tokens=False) + [TOKENIZER.eos_token_id] * (finish == "stop")
    return Rollout(
        f"a/{next(NUMBERS)}", np.array([1]), np.array(ids), np.zeros(len(ids), np.float32), None, ((0, 0),), finish
    )


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


@pytest.mark.parametrize(
    ("text", "outcome", "score"),
    [
        ("3 + 4 = \\boxed{7}", Outcome.TRUNCATED, 1.0),
        ("3 + 4 = ", Outcome.TRUNCATED, 0.0),
    ],
)
def test_a_stage_may_have_truncated_answers_scored(text: str, outcome: Outcome, score: float) -> None:
    with Judge(TOKENIZER, score_truncated=True) as judge:
        verdict = verdict_on(judge, MATH, rollout(text, finish="length"))[1]
    assert (verdict.outcome, verdict.score) == (outcome, score)


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
    scores_truncated = False

    def rank(self, task: Task, texts: Sequence[str]) -> list[Verdict]:
        return [Verdict.scored(float(sorted(texts, key=len).index(text))) for text in texts]


def judge_of(verifier: Verifier, ledger: Ledger | None = None) -> Judge:
    return Judge(TOKENIZER, {"math": lambda: verifier}, ledger)


def test_verdicts_keep_the_order_of_the_answers_not_of_their_ends() -> None:
    groups = [[rollout("aaaa"), rollout("b")], [rollout("cc", "length"), rollout("ddd")]]
    with judge_of(Lengths()) as judge:
        answers = judge([MATH, MATH], groups)
    assert [[text for text, _ in group] for group in answers] == [["aaaa", "b"], ["cc", "ddd"]]
    assert [[verdict.score for _, verdict in group] for group in answers] == [[4, 1], [0, 3]]


def test_a_group_is_ranked_without_its_truncated_answers() -> None:
    groups = [[rollout("aaaa"), rollout("bbbbbb", "length"), rollout("c")]]
    with judge_of(Ranks()) as judge:
        (answers,) = judge([MATH], groups)
    assert [verdict.score for _, verdict in answers] == [1, 0, 0]
    assert answers[1][1].outcome is Outcome.TRUNCATED


@dataclass
class Gated:
    """Begins at once and says so, but has no verdict before the gate opens."""

    concurrency: int = 4
    begun: list[str] = field(default_factory=list)
    first: Event = field(default_factory=Event)
    gate: Event = field(default_factory=Event)

    def __call__(self, task: Task, text: str) -> Verdict:
        self.begun.append(text)
        self.first.set()
        assert self.gate.wait(TIMEOUT)
        return Verdict.scored(float(len(text)))

    def close(self) -> None:
        self.gate.set()


class GatedRanks(Gated):
    scores_truncated = False

    def rank(self, task: Task, texts: Sequence[str]) -> list[Verdict]:
        return [self(task, "+".join(texts)), *(Verdict.scored(0.0) for _ in texts[1:])]


def test_scoring_of_a_sample_begins_when_it_ends_and_its_verdict_waits_for_the_batch() -> None:
    verifier, (first, last) = Gated(), (rollout("aa"), rollout("bbb"))
    with judge_of(verifier) as judge:
        judge.expect(MATH, [first.id, last.id])
        judge.begin(first)
        assert verifier.first.wait(TIMEOUT)
        assert verifier.begun == ["aa"]
        verifier.gate.set()
        judge.begin(last)
        ((one, two),) = judge([MATH], [[first, last]])
        assert [one.verdict.score, two.verdict.score] == [2.0, 3.0]
        assert sorted(verifier.begun) == ["aa", "bbb"]
        assert judge.least_seconds()["math"] > 0


def test_a_group_is_ranked_when_it_is_complete_and_in_the_order_of_its_requests() -> None:
    verifier, group = GatedRanks(), [rollout("aa"), rollout("long", "length"), rollout("b")]
    other = [rollout("c"), rollout("d")]
    with judge_of(verifier) as judge:
        for members in (group, other):
            judge.expect(MATH, [member.id for member in members])
        for member in (other[0], group[2], group[0], group[1]):
            assert verifier.begun == []
            judge.begin(member)
        assert verifier.first.wait(TIMEOUT)
        assert verifier.begun == ["aa+b"]
        verifier.gate.set()
        judge.begin(other[1])
        assert [a.verdict.score for a in judge([MATH], [group])[0]] == [4.0, 0.0, 0.0]
        assert [a.verdict.score for a in judge([MATH], [other])[0]] == [3.0, 0.0]


def test_what_an_earlier_attempt_has_judged_is_not_judged_again(tmp_path: Path) -> None:
    verifier, (known, new) = Gated(), (rollout("aa"), rollout("bbb"))
    verifier.gate.set()
    for attempt in ([known], [known, new]):
        with Ledger() as ledger, judge_of(verifier, ledger) as judge:
            ledger.open(tmp_path / "version_00000", "weights")
            judge.expect(MATH, [each.id for each in attempt])
            for each in attempt:
                judge.begin(each)
            (answers,) = judge([MATH], [attempt])
    assert [answer.verdict.score for answer in answers] == [2.0, 3.0]
    assert verifier.begun == ["aa", "bbb"]


def test_what_has_not_begun_when_a_draw_fails_is_never_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_module, "GRACE_SECONDS", 0.0)
    verifier, samples = Gated(concurrency=1), [rollout("a"), rollout("b")]
    with pytest.raises(KeyboardInterrupt), judge_of(verifier) as judge:
        judge.expect(MATH, [sample.id for sample in samples])
        for sample in samples:
            judge.begin(sample)
        assert verifier.first.wait(TIMEOUT)
        raise KeyboardInterrupt
    assert verifier.begun == ["a"]


def test_a_fault_of_a_verifier_is_raised_when_its_verdict_is_taken() -> None:
    sample = rollout("a")

    class Faulty(Lengths):
        def __call__(self, task: Task, text: str) -> Verdict:
            raise ZeroDivisionError

    with judge_of(Faulty()) as judge:
        judge.expect(MATH, [sample.id])
        judge.begin(sample)
        with pytest.raises(ZeroDivisionError):
            judge([MATH], [[sample]])


def test_a_domain_that_only_a_reward_model_judges_has_no_score_and_no_failure() -> None:
    with Judge(TOKENIZER, unjudged={"math"}) as judge:
        ((ended, cut),) = judge([MATH], [[rollout("7"), rollout("7", "length")]])
        assert judge.verifiers == {}
    assert (ended.verdict.outcome, ended.verdict.score) == (Outcome.COMPLETED, None)
    assert (cut.verdict.outcome, cut.verdict.score) == (Outcome.TRUNCATED, None)
