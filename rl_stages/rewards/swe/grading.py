"""Tests decide: a patch on a fresh checkout, in the sandbox, under pytest that the patch cannot configure.

Only what a patch does to source files that are there is applied; test files, pytest's and Python's configuration and
new files are not. Two tests with random names run first and last, one that must pass and one that must fail: a patch
that makes tests pass from inside the process makes that one pass too.
"""

from __future__ import annotations

import ast
import json
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cascade_rl.rl_stages.core.verdict import Verdict
from cascade_rl.rl_stages.rewards.swe.repository import Files, Repository, can_be_patched
from cascade_rl.rl_stages.sandbox import Limits, SandboxFailure

if TYPE_CHECKING:
    from cascade_rl.rl_stages.rewards.swe.instance import Instance
    from cascade_rl.rl_stages.sandbox import Sandbox

TEST_LIMITS = Limits(cpu_seconds=30.0)
# Without the plugins of whatever is installed; the same hashes, so the same order of sets, in every run.
ENVIRONMENT = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
TEST_MACHINERY = frozenset(("pytest", "_pytest", "pluggy", "unittest", "gc"))

_RUNNER = Path(__file__).with_name("pytest_in_box.py").read_text()


@dataclass(frozen=True)
class TestOutcome:
    """`outcome` is "passed", "skipped" or "failed"; `message` says why it failed."""

    outcome: str
    message: str


@dataclass(frozen=True)
class TestRun:
    """Outcomes by pytest node id. `problem` says why they cannot be trusted, or why there are none."""

    outcomes: Mapping[str, TestOutcome]
    cpu_seconds: float
    problem: str = ""

    def passed(self, test: str) -> bool:
        return test in self.outcomes and self.outcomes[test].outcome == "passed"


class PytestUnavailable(SandboxFailure):
    """pytest did not start in the box, before anything of the repository ran."""


def grade(instance: Instance, files: Files, sandbox: Sandbox) -> Verdict:
    """1 when every test of the instance comes out as it should with `files` in place of the repository's, else 0.

    An infrastructure failure when the sandbox or the disk fails.
    """
    patch = applicable(instance.repository.files, files)
    if not patch:
        return Verdict.scored(0.0, detail="no source file that is there was changed")
    if why := objection(instance.repository.files, patch):
        return Verdict.scored(0.0, detail=why)
    try:
        run = run_tests(instance.repository.changed(patch), sandbox)
    except (SandboxFailure, OSError) as failure:
        return Verdict.infrastructure_failure(str(failure))
    if run.problem:
        return Verdict.scored(0.0, detail=run.problem)
    wrong = [test for test in instance.must_pass if not run.passed(test)]
    wrong += [test for test in instance.fail_to_fail if run.passed(test)]
    return Verdict.scored(float(not wrong), detail=f"wrong: {', '.join(wrong[:3])}" if wrong else "as expected")


def applicable(before: Files, after: Files) -> dict[str, str]:
    """The part of a patch that counts: changed text of source files that are there."""
    return {path: text for path, text in after.items() if can_be_patched(path) and before.get(path, text) != text}


def objection(before: Files, patch: Files) -> str | None:
    """Why a patch is not run: it imports what runs the tests, which the file did not import before."""
    for path, text in patch.items():
        if new := sorted(imported(text) & TEST_MACHINERY - imported(before[path])):
            return f"{path} now imports {', '.join(new)}"
    return None


def imported(source: str) -> set[str]:
    """First names of all imports of a module; none of one that does not parse, which no test can import either."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}


def run_tests(repository: Repository, sandbox: Sandbox, limits: Limits = TEST_LIMITS) -> TestRun:
    """All tests of a repository. After a failure of the infrastructure, such as a worker that was killed, all of it
    happens a second time, in a fresh folder.

    Raises SandboxFailure, and OSError where the disk does not take the checkout.
    """
    try:
        return _run_tests(repository, sandbox, limits)
    except SandboxFailure:
        return _run_tests(repository, sandbox, limits)


def _run_tests(repository: Repository, sandbox: Sandbox, limits: Limits) -> TestRun:
    nonce, canaries = secrets.token_hex(16), (Canary(), Canary())
    tests = sorted(path for path in repository.tests if is_module(path))
    first, last = (f"test_{canary.name}.py" for canary in canaries)
    request = {"nonce": nonce, "files": [first, *tests, last]}
    argv = [sys.executable, "-I", "-B", "-c", _RUNNER]
    with sandbox.folder({**repository.with_tests, first: canaries[0].source, last: canaries[1].source}) as folder:
        run = sandbox.run_command(argv, folder, limits, json.dumps(request).encode(), ENVIRONMENT)
    if f"{nonce} ready\n" not in run.output:
        raise PytestUnavailable(f"expected pytest to start in the box; found {run.output[-300:]!r} ({run.status})")
    outcomes = _outcomes(run.output, nonce)
    if outcomes is None:
        return TestRun({}, run.cpu_seconds, f"no outcomes: {run.status}, exit code {run.exit_code}")
    if not all(canary.holds(path, outcomes) for canary, path in zip(canaries, (first, last), strict=True)):
        return TestRun({}, run.cpu_seconds, "a test that must fail did not, or one that must pass did not")
    own = {test: outcome for test, outcome in outcomes.items() if test.partition("::")[0] in tests}
    return TestRun(own, run.cpu_seconds)


class Canary:
    """Two tests whose outcomes are known, under names that are not."""

    def __init__(self) -> None:
        self.name, self.passing, self.failing = (secrets.token_hex(8) for _ in range(3))
        functions = [f"def test_{self.passing}():\n    assert 3 == 3\n"]
        functions += [f"def test_{self.failing}():\n    assert 3 == 4\n"]
        self.source = "\n\n".join(sorted(functions))

    def holds(self, path: str, outcomes: Mapping[str, TestOutcome]) -> bool:
        found = {name: outcomes.get(f"{path}::test_{name}") for name in (self.passing, self.failing)}
        return [outcome and outcome.outcome for outcome in found.values()] == ["passed", "failed"]


def is_module(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name.endswith("_test.py") or (name.startswith("test_") and name.endswith(".py"))


def _outcomes(output: str, nonce: str) -> dict[str, TestOutcome] | None:
    """None without exactly one line of them: whoever copied the nonce is not believed."""
    lines = [line.partition(" ")[2] for line in output.splitlines() if line.startswith(f"{nonce} {{")]
    if len(lines) != 1:
        return None
    return {test: TestOutcome(*outcome) for test, outcome in json.loads(lines[0]).items()}
