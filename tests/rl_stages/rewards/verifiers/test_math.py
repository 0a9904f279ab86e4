import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.rollouts import Outcome
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.rewards.deadline_worker import DeadlineCheck
from cascade_rl.rl_stages.rewards.verifiers.math import MathVerifier, parse_row

# Of one of NeMo-Gym's recorded rollouts; math-verify takes half a minute.
LARGE = r"\dfrac{(1+\sqrt{3})^{4033}-(1-\sqrt{3})^{4033}}{2^{2017}\sqrt{3}}"
EQUAL_TO_LARGE = r"\frac{(3-\sqrt{3})(2-\sqrt{3})^{2016}+(3+\sqrt{3})(2+\sqrt{3})^{2016}}{6}"


@pytest.fixture(scope="module")
def verifier():
    with closing(MathVerifier(deadline_seconds=120.0)) as shared:
        yield shared


def verdict(verifier, text, expected):
    return verifier(Task("t", "math", (), parse_row({"expected_answer": expected})), text)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("7", "7"),
        ("0.5", r"\frac{1}{2}"),
        (r"1+2=3", "3"),
        (r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}"),
        ("x=5", "5"),
        (r"50\%", "0.5"),
        (r"\{2, 1\}", r"\{1, 2\}"),
        ("(x+1)^2", "x^2+2x+1"),
        (LARGE, EQUAL_TO_LARGE),
        (str(2**2000), "2^{2000}"),
        (f"{2**2000:,}", "2^{2000}"),
    ],
)
def test_equal_answers_score_one(verifier, answer, expected):
    result = verdict(verifier, f"so \\boxed{{{answer}}}", expected)
    assert (result.outcome, result.score) == (Outcome.COMPLETED, 1.0)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("8", "7"),
        ("0.333333", "1/3"),
        ("41=42", "42"),
        ("x^2=x^2", "x^2"),
        (r"42 \text{ or not}", "42"),
        ("41, 42", "42"),
        (r"\{41, 42\}", "42"),
        ("+".join("1" * 5001), "1"),
        ("(" * 300 + "1" + ")" * 300, "1"),
        (r"\frac{1}{0}", "1"),
        ("nothing", "1"),
        (r"\infty", r"\frac{1}{2}"),
        ("1" + "0" * 600, "1"),
        (str(2**2000 + 1), "2^{2000}"),
        ("9" * 4301, "5"),
        ("1+3=3", "3"),
        (r"\sqrt{4}", "2"),
        (r"\text{7 or 8}", "7"),
        ("7;8", "7"),
        (r"-2, 2, 3", r"\pm 2"),
    ],
)
def test_other_answers_and_known_hacks_score_zero(verifier, answer, expected):
    result = verdict(verifier, f"\\boxed{{{answer}}}", expected)
    assert (result.outcome, result.score) == (Outcome.COMPLETED, 0.0)


@pytest.mark.parametrize(
    "text", ["", "7", r"\boxed{}", r"\boxed{7", r"<think>\boxed{7}", r"<think>\boxed{7}</think> done"]
)
def test_no_box_behind_the_reasoning_is_a_wrong_format(verifier, text):
    result = verdict(verifier, text, "7")
    assert (result.outcome, result.score) == (Outcome.WRONG_FORMAT, 0.0)


# Inputs for which math-verify alone uses up its limit of five seconds (measured here), and two other long ones:
# with 5,001 terms sympy reaches its recursion limit.
HANGING = [
    "10^{10^{10}}",
    "9^{9^{9^9}}",
    "1000000!",
    "((((10!)!)!)!)",
    r"\frac{1000000!}{999998!}",
    "(" * 300 + "1" + ")" * 300,
    "1 " * 200_000,
    "+".join("1" * 5001),
    "x" * 120_000,
]


def test_no_answer_takes_longer_than_the_deadline_and_the_next_one_is_served():
    undecided = []
    with closing(MathVerifier()) as verifier:
        for answer in HANGING:
            verifier._check._deadline = 120.0
            assert verdict(verifier, r"\boxed{\sqrt{8}}", r"2\sqrt{2}").score == 1.0  # by a worker that is there
            verifier._check._deadline = 0.5
            result = verdict(verifier, rf"\boxed{{{answer}}}", "1!")
            assert result.score == 0.0 or "s on a CPU" in result.detail
            undecided += [answer] * result.detail.startswith("undecided after 0.5 s")
    assert len(undecided) >= 3, undecided  # the others are refused before any worker


STAND_IN = """
import os, time
from cascade_rl.rl_stages.rewards.deadline_worker import serve

def reply(request):
    if request["answer"] == "x^2":
        os._exit(3)
    if request["answer"] == "x^3":
        time.sleep(600)
    return {"score": float(request["answer"] == request["expected"]), "detail": ""}

serve(reply)
"""


def test_verdicts_stay_with_their_answers_when_some_fail_in_the_middle(monkeypatch, tmp_path):
    """By three threads, of a worker that a wrong answer kills each time, and that another hangs."""
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    answers = ["x", "x^2", "x^3", "y", "2", "x^2", "1/2", "x", "z"]
    with closing(MathVerifier()) as verifier, ThreadPoolExecutor(3) as threads:
        verifier._check = DeadlineCheck("stand_in", 5.0)
        results = list(threads.map(lambda answer: verdict(verifier, rf"\boxed{{{answer}}}", "x"), answers))
    assert [result.score for result in results] == [1.0, None, 0.0, 0.0, 0.0, None, 0.0, 1.0, 0.0]


def test_a_check_that_waits_for_a_processor_masks_the_sample():
    with closing(MathVerifier()) as verifier:
        assert verdict(verifier, r"\boxed{\sqrt{8}}", r"2\sqrt{2}").score == 1.0
        verifier._check._deadline = 0.5
        place, worker = {min(os.sched_getaffinity(0))}, verifier._check.worker.pid
        os.sched_setaffinity(worker, place)
        os.sched_setscheduler(worker, os.SCHED_IDLE, os.sched_param(0))
        busy = subprocess.Popen([sys.executable, "-S", "-c", "print(flush=True)\nwhile True: pass"], stdout=-1)
        os.sched_setaffinity(busy.pid, place)
        busy.stdout.readline()
        try:
            result = verdict(verifier, r"\boxed{((((10!)!)!)!)}", "2!")
        finally:
            busy.kill()
            busy.communicate()
    assert (result.outcome, result.score) == (Outcome.INFRASTRUCTURE_FAILURE, None)
    assert "undecided after 2 s, of which 0." in result.detail


def test_a_worker_that_is_killed_is_replaced_and_one_that_keeps_dying_masks_the_sample(monkeypatch):
    with closing(MathVerifier(deadline_seconds=120.0)) as verifier:
        assert verdict(verifier, r"\boxed{\sqrt{8}}", r"2\sqrt{2}").score == 1.0
        os.kill(verifier._check.worker.pid, signal.SIGKILL)
        assert verdict(verifier, r"\boxed{\sqrt{12}}", r"2\sqrt{3}").score == 1.0
        os.kill(verifier._check.worker.pid, signal.SIGKILL)
        monkeypatch.setattr(verifier._check, "_module", "no_such_module")
        result = verdict(verifier, r"\boxed{\sqrt{12}}", r"2\sqrt{3}")
        assert (result.outcome, result.score) == (Outcome.INFRASTRUCTURE_FAILURE, None)
        monkeypatch.undo()
        assert verdict(verifier, r"\boxed{\sqrt{12}}", r"2\sqrt{3}").score == 1.0


def test_plain_numbers_start_no_process():
    with closing(MathVerifier()) as verifier:
        assert verdict(verifier, r"3 + 4 = \boxed{7}", "7").score == 1.0
        assert verifier._check.worker is None


@pytest.mark.parametrize("expected", [None, 7, "", "  ", r"\frac"])
def test_unreadable_expected_answers_are_refused(expected):
    with pytest.raises(UserError, match="expected 'expected_answer' to be"):
        parse_row({"expected_answer": expected})
