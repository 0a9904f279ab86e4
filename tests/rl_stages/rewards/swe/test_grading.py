import os
import random
import signal
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from threading import Thread

import pytest

from cascade_rl.engine.cluster.node import ThisNode
from cascade_rl.engine.core.rollouts import Outcome
from cascade_rl.rl_stages.rewards.swe import grading
from cascade_rl.rl_stages.rewards.swe.grading import grade, run_tests
from cascade_rl.rl_stages.rewards.swe.instance import Instance
from cascade_rl.rl_stages.rewards.swe.unified_diff import unified_diff
from cascade_rl.rl_stages.sandbox import CommandRun, Folder, Sandbox, SandboxFailure
from cascade_rl.rl_stages.sandbox.process_tree import descendants
from cascade_rl.rl_stages.swe_tasks.mutation import mutations
from tests.rl_stages.rewards.swe.tiny_package import REPOSITORY, SOURCE

PATH = "tiny/lists.py"
MUTANTS = 3  # in each tier, others in each


@cache
def passing(sandbox) -> tuple[str, ...]:
    run = run_tests(REPOSITORY, sandbox)
    return tuple(test for test in run.outcomes if run.passed(test))


def instance_of(buggy: str, sandbox) -> Instance:
    diff = unified_diff({PATH: buggy}, {PATH: SOURCE})
    return Instance("tiny", "it is wrong", REPOSITORY.changed({PATH: buggy}), diff, passing(sandbox), ())


@pytest.fixture(scope="module")
def buggy(sandbox) -> Instance:
    return instance_of(SOURCE.replace("value > best", "value < best"), sandbox)


def test_outcomes_by_node_id(sandbox):
    failed = run_tests(REPOSITORY.changed({PATH: SOURCE.replace("found + 1", "found + 2")}), sandbox).outcomes
    assert len(passing(sandbox)) == len(failed) == 11
    assert {test for test, outcome in failed.items() if outcome.outcome != "passed"} == {
        "tests/test_lists.py::TestCount::test_count"
    }
    assert failed["tests/test_lists.py::TestCount::test_count"].message.startswith("assert ")


def test_of_mutants_gold_scores_1_and_the_bug_and_the_empty_patch_0(tier_sandbox):
    # Arguments of `min` can be swapped unseen.
    found = [mutation for mutation in mutations(SOURCE) if mutation.kind != "swapped arguments"]
    chosen = random.Random(tier_sandbox.tier).sample(found, MUTANTS)

    def scores(mutation) -> tuple[float | None, ...]:
        instance = instance_of(mutation.apply(SOURCE), tier_sandbox)
        untouched = instance.repository.files
        commented = {PATH: untouched[PATH] + "# a comment\n"}
        patches = instance.repaired, commented, untouched, {}
        return tuple(grade(instance, patch, tier_sandbox).score for patch in patches)

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(scores, chosen))
    assert dict(zip(chosen, results, strict=True)) == dict.fromkeys(chosen, (1.0, 0.0, 0.0, 0.0))


HOOK = """import pytest


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    outcome.get_result().outcome = "passed"
"""
REPORTS = """
def tamper(reports):
    made = reports.TestReport.from_item_and_call.__func__

    def passed(cls, item, call):
        call.excinfo = None
        return made(cls, item, call)

    reports.TestReport.from_item_and_call = classmethod(passed)


"""
FORGERY = """import os

os.write(1, b'\\n0 {"tests/test_lists.py::test_has": ["passed", ""]}\\n')
"""
ATTACKS = {
    "conftest at the root": ({"conftest.py": HOOK}, "no source file"),
    "conftest of the tests": ({"tests/conftest.py": HOOK}, "no source file"),
    "pytest.ini": ({"pytest.ini": "[pytest]\naddopts = -p evil\n", "evil.py": HOOK}, "no source file"),
    "reports, imported": (
        {"tiny/__init__.py": f"import _pytest.reports\n{REPORTS}tamper(_pytest.reports)\n"},
        "now imports _pytest",
    ),
    "reports, found": (
        {"tiny/__init__.py": f"import sys\n{REPORTS}tamper(sys.modules['_py' + 'test.reports'])\n"},
        "a test that must fail did not",
    ),
    "the tests themselves": ({"tests/test_lists.py": "def test_has():\n    pass\n"}, "no source file"),
    "Python's own hook": ({"sitecustomize.py": "import os\nos._exit(0)\n"}, "no source file"),
    "a module that pytest imports": ({"iniconfig.py": "1 / 0\n"}, "no source file"),
    "an early exit": ({"tiny/__init__.py": "import os\n\nos._exit(0)\n"}, "no outcomes"),
    "no end": ({"tiny/lists.py": "while True:\n    pass\n"}, "no outcomes: time limit"),
    "no module": ({"tiny/lists.py": "1 / 0\n"}, "one that must pass did not"),
    "outcomes of its own": ({"tiny/__init__.py": FORGERY}, "wrong: "),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_a_patch_may_not_do_scores_0(attack, buggy, sandbox, monkeypatch):
    from cascade_rl.rl_stages.rewards.swe import grading

    if attack == "no end":
        limits = replace(grading.TEST_LIMITS, cpu_seconds=3.0)
        monkeypatch.setattr(grading, "run_tests", lambda *given, node=None: run_tests(*given, limits, node))
    patch, why = ATTACKS[attack]
    verdict = grade(buggy, {**buggy.repository.files, **patch}, sandbox)
    assert verdict.score == 0.0 and why in verdict.detail, verdict


def test_an_attack_beside_the_repair_does_not_spoil_it(buggy, sandbox):
    files = {**buggy.repaired, "conftest.py": "1 / 0\n", "new.py": "1 / 0\n"}
    assert grade(buggy, files, sandbox).score == 1.0


def test_a_test_that_must_fail_is_held_to_it(buggy, sandbox):
    strict = replace(buggy, must_pass=(), fail_to_fail=("tests/test_lists.py::test_has",))
    verdict = grade(strict, strict.repaired, sandbox)
    assert verdict.score == 0.0 and "test_has" in verdict.detail


NOTHING_RUN = {"PYTEST_ADDOPTS": "--collect-only"}


def patches(instance: Instance) -> list[Mapping[str, str]]:
    """The golden one, and one that changes nothing that matters."""
    return [instance.repaired, {PATH: instance.repository.files[PATH] + "# a comment\n"}]


def test_a_box_that_runs_no_test_is_no_verdict_on_any_patch(buggy, sandbox, monkeypatch):
    instance = replace(buggy, id="fresh")
    with monkeypatch.context() as broken:
        broken.setattr(grading, "ENVIRONMENT", {**grading.ENVIRONMENT, **NOTHING_RUN})
        verdicts = [grade(instance, patch, sandbox) for patch in patches(instance)]
    assert [(verdict.outcome, verdict.score) for verdict in verdicts] == [(Outcome.INFRASTRUCTURE_FAILURE, None)] * 2
    for part in ("expected outcomes of fresh's tests", "found: a test that must fail did not", "Run `cascade doctor`"):
        assert part in verdicts[0].detail
    assert [grade(instance, patch, sandbox).score for patch in patches(instance)] == [1.0, 0.0]


def test_a_box_without_pytest_is_no_verdict_on_any_patch(buggy, sandbox, monkeypatch):
    monkeypatch.setattr(grading, "_RUNNER", f"import sys; sys.modules['pytest'] = None\n{grading._RUNNER}")
    for patch in patches(buggy):
        verdict = grade(buggy, patch, sandbox)
        assert verdict.outcome is Outcome.INFRASTRUCTURE_FAILURE and verdict.score is None
        assert "expected pytest to start" in verdict.detail and "import of pytest halted" in verdict.detail


class OtherNode(ThisNode):
    host = "other"


def test_the_golden_patch_is_tested_once_on_each_node_where_patches_break_the_tests(buggy, monkeypatch):
    runs = []

    def seen(repository, *given):
        runs.append((repository.files[PATH], (run := run_tests_once(repository, *given)).node.host))
        return run

    run_tests_once, this = grading._run_tests, ThisNode().host
    monkeypatch.setattr(grading, "_run_tests", seen)
    with Sandbox(1, others=[OtherNode()]) as sandbox:  # of its folders the first is here, the next are there
        scores = [grade(buggy, {PATH: f"{number} / 0\n"}, sandbox).score for number in range(3)]
    assert scores == [0.0] * 3
    assert runs[:4] == [("0 / 0\n", this), (SOURCE, this), ("1 / 0\n", "other"), (SOURCE, "other")]
    assert [source for source, _ in runs[4:]] == ["2 / 0\n"]


def test_a_wrong_patch_scores_0_where_only_the_golden_one_lets_pytest_collect(sandbox):
    instance = instance_of(SOURCE.replace("def has(", "def had("), sandbox)
    assert [grade(instance, patch, sandbox).score for patch in patches(instance)] == [1.0, 0.0]


class Broken:
    def folder(self, *_) -> nullcontext:
        return nullcontext()

    def run_command(self, *_) -> CommandRun:
        raise SandboxFailure("no slot")


def test_a_failure_of_the_sandbox_is_no_verdict_on_the_patch(buggy):
    verdict = grade(buggy, buggy.repaired, Broken())
    assert (verdict.outcome, verdict.score, verdict.detail) == (Outcome.INFRASTRUCTURE_FAILURE, None, "no slot")


class Killed:
    """A sandbox whose worker is killed, the first times that it has a box open."""

    def __init__(self, sandbox: Sandbox, times: int) -> None:
        self.sandbox, self.times = sandbox, times

    def run_command(self, *arguments) -> CommandRun:
        if self.times:
            self.times -= 1
            Thread(target=kill_a_busy_worker).start()
        return self.sandbox.run_command(*arguments)

    def folder(self, *given) -> Folder:
        return self.sandbox.folder(*given)


def kill_a_busy_worker() -> None:
    while True:
        for pid in descendants(os.getpid()):
            if b"sandbox.inside.box_worker" in command_line(pid) and descendants(pid):
                return os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def test_a_worker_that_is_killed_is_replaced_once(buggy, sandbox):
    once, twice = Killed(sandbox, 1), Killed(sandbox, 2)
    assert grade(buggy, buggy.repaired, once).score == 1.0 and once.times == 0
    verdict = grade(buggy, buggy.repaired, twice)
    assert verdict.outcome is Outcome.INFRASTRUCTURE_FAILURE and "the worker died" in verdict.detail
