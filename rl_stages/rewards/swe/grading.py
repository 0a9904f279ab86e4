"""Grades a patch by tests: on a fresh checkout, in the sandbox, with a pytest that the patch cannot configure.

Only a patch's changes to existing source files are applied. Its changes to test files and to the configuration of
pytest and Python are not, nor are its new files. The values that the tests expect are not in the box (exam.py): a patch
that reports outcomes from inside the tests' process would have to report these.

Files with random names run first and last. Each has one test that must pass and one that must fail. If these have other
outcomes, or there are no outcomes, the repository is also tested with its golden patch. A box in which that fails too
says nothing about any patch.
"""

from __future__ import annotations

import ast
import json
import secrets
import sys
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from cascade_rl.rl_stages.core.verdict import Verdict
from cascade_rl.rl_stages.rewards.swe import sealed_value
from cascade_rl.rl_stages.rewards.swe.exam import Exam
from cascade_rl.rl_stages.rewards.swe.other_copies import other_copies
from cascade_rl.rl_stages.rewards.swe.repository import Files, Repository, can_be_patched
from cascade_rl.rl_stages.sandbox import Limits, SandboxFailure

if TYPE_CHECKING:
    from cascade_rl.engine.cluster.node import Node
    from cascade_rl.rl_stages.rewards.swe.exam import Paper
    from cascade_rl.rl_stages.rewards.swe.instance import Instance
    from cascade_rl.rl_stages.sandbox import Sandbox

Seen = Mapping[int, Set[str]]
TEST_LIMITS = Limits(cpu_seconds=30.0)
# No plugins of installed packages. The same hashes, and so the same order of sets, in every run.
ENVIRONMENT = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
TEST_MACHINERY = frozenset(("pytest", "_pytest", "pluggy", "unittest", "gc"))
PRINTED_CHARACTERS = 300  # at the end of what a box printed

# The module that the runner imports, which the box cannot see, and the runner.
_RUNNER = f"""
import sys, types
module = sys.modules[{sealed_value.__name__!r}] = types.ModuleType("sealed_value")
exec({Path(sealed_value.__file__).read_text()!r}, module.__dict__)
{Path(__file__).with_name("pytest_in_box.py").read_text()}"""


class _Known:
    """What grading has learned of an instance: its exam, and the hosts on which it is known to be gradable."""

    def __init__(self, instance: Instance) -> None:
        self.exam = Exam(instance)
        self.hosts: set[str] = set()


_instances: WeakKeyDictionary[Sandbox, dict[str, _Known]] = WeakKeyDictionary()


def _known(instance: Instance, sandbox: Sandbox) -> _Known:
    known = _instances.setdefault(sandbox, {})
    return known.get(instance.digest) or known.setdefault(instance.digest, _Known(instance))


@dataclass(frozen=True)
class TestOutcome:
    """`outcome` is "passed", "skipped" or "failed"; `message` says why it failed."""

    outcome: str
    message: str


@dataclass(frozen=True)
class TestRun:
    """Outcomes by pytest node id, on `node`. `problem` says why they cannot be trusted or are missing. `printed` is
    then the end of what the box printed. `seen`: see `Paper.wrong`."""

    outcomes: Mapping[str, TestOutcome]
    cpu_seconds: float
    node: Node
    problem: str = ""
    printed: str = ""
    seen: Seen = field(default_factory=dict)

    @property
    def results(self) -> dict[str, str]:
        return {test: outcome.outcome for test, outcome in self.outcomes.items()}

    def passed(self, test: str) -> bool:
        return test in self.outcomes and self.outcomes[test].outcome == "passed"


class PytestUnavailable(SandboxFailure):
    """pytest did not start in the box. No code of the repository had run."""


class UngradableInstance(SandboxFailure):
    """Even with the golden patch there are no outcomes that can be trusted."""


def grade(instance: Instance, files: Files, sandbox: Sandbox) -> Verdict:
    """1 if every test of the instance has its expected outcome with `files` in place of the repository's, else 0.

    An infrastructure failure if the sandbox or the disk fails, or if the box cannot grade the golden patch either.
    """
    patch = applicable(instance.repository.files, files)
    if not patch:
        return Verdict.scored(0.0, detail="no source file that is there was changed")
    if why := objection(instance.repository.files, patch):
        return Verdict.scored(0.0, detail=why)
    try:
        wrong = _examined(instance, patch, sandbox)
    except (SandboxFailure, OSError) as failure:
        return Verdict.infrastructure_failure(str(failure))
    return Verdict.scored(float(not wrong), detail=wrong or "as expected")


def _examined(instance: Instance, patch: Files, sandbox: Sandbox) -> str:
    """What is wrong with a patch's answers to the instance's exam; empty if nothing is.

    Once, when a patch is wrong, the golden patch answers the same paper: where it is wrong too, the exam was.
    """
    exam = _known(instance, sandbox).exam
    learned = exam.learned
    paper = exam.paper(instance.repository.tests)
    run = run_tests(instance.repository.changed(patch).with_other(paper.tests), sandbox)
    wrong = {run.problem} if run.problem else paper.wrong(instance, run.results, run.seen)
    if not wrong:
        return ""
    with exam.lock:
        if not exam.learned:
            _learn(exam, paper, instance, sandbox, run.node)
    if not learned and exam.excuses(wrong):
        return _examined(instance, patch, sandbox)
    if run.problem:
        require_gradable(instance, sandbox, run.node)
        return run.problem
    tests = sorted({name.partition(": value ")[0] for name in wrong})
    return f"wrong: {', '.join(tests[:3])}"


def _learn(exam: Exam, paper: Paper, instance: Instance, sandbox: Sandbox, node: Node) -> None:
    """Has the golden patch answer the paper, after which the exam seals only what that patch can show."""
    run = run_tests(instance.repository.changed(instance.repaired).with_other(paper.tests), sandbox, node=node)
    if run.problem:
        require_gradable(instance, sandbox, node)
        return exam.give_up()
    _known(instance, sandbox).hosts.add(node.host)
    exam.learn(paper.wrong(instance, run.results, run.seen))


def hides_a_value(instance: Instance, sandbox: Sandbox) -> bool:
    """Whether a patch that reports outcomes itself must know a value that the problem's statement does not tell. What
    the golden patch cannot show is none, once it was graded."""
    return _known(instance, sandbox).exam.hides_a_value(instance.problem_statement)


def applicable(before: Files, after: Files) -> dict[str, str]:
    """The part of a patch that counts: the new text of existing source files that it changes."""
    return {path: text for path, text in after.items() if can_be_patched(path) and before.get(path, text) != text}


def objection(before: Files, patch: Files) -> str | None:
    """Why a patch is not run: it adds an import of the test machinery to a file. None if it may run."""
    for path, text in patch.items():
        if new := sorted(imported(text) & TEST_MACHINERY - imported(before[path])):
            return f"{path} now imports {', '.join(new)}"
    return None


def imported(source: str) -> set[str]:
    """Top-level names of all imports of a module. Empty if it does not parse: no test can import it either."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}


def require_gradable(instance: Instance, sandbox: Sandbox, node: Node) -> None:
    """Raises UngradableInstance if the golden patch has no outcomes on `node` that can be trusted.

    An instance that passes is remembered. The check needs the golden patch: without it there may be no outcomes even on
    a sound node, because pytest runs nothing if a test imports a name that only the patch adds.
    """
    hosts = _known(instance, sandbox).hosts
    if node.host in hosts:
        return
    run = run_tests(instance.repository.changed(instance.repaired), sandbox, node=node)
    if run.problem:
        raise UngradableInstance(
            f"expected outcomes of {instance.id}'s tests with its golden patch in the sandbox of {node.host}; found: "
            f"{run.problem}; it printed {run.printed!r}. Run `cascade doctor` on that host and repair what it reports; "
            "where it reports nothing, remove the instance from the data"
        )
    hosts.add(node.host)


def run_tests(
    repository: Repository, sandbox: Sandbox, limits: Limits = TEST_LIMITS, node: Node | None = None
) -> TestRun:
    """Runs all tests of a repository, on `node` or on any node. If the infrastructure fails, for instance because a
    worker was killed, the run is repeated once in a fresh folder.

    Raises SandboxFailure, and OSError if the checkout cannot be written to the disk.
    """
    try:
        return _run_tests(repository, sandbox, limits, node)
    except SandboxFailure:
        return _run_tests(repository, sandbox, limits, node)


def _run_tests(repository: Repository, sandbox: Sandbox, limits: Limits, node: Node | None) -> TestRun:
    nonce, canaries = secrets.token_hex(16), (Canary(), Canary())
    tests = sorted(path for path in repository.tests if is_module(path))
    first, last = (f"test_{canary.name}.py" for canary in canaries)
    request = {"nonce": nonce, "files": [first, *tests, last]}
    argv = [sys.executable, "-I", "-B", "-c", _RUNNER]
    files = {**repository.with_tests, first: canaries[0].source, last: canaries[1].source}
    with sandbox.folder(files, node, other_copies(repository)) as folder:
        run = sandbox.run_command(argv, folder, limits, json.dumps(request).encode(), ENVIRONMENT)
    if f"{nonce} ready\n" not in run.output:
        end = run.output[-PRINTED_CHARACTERS:]
        raise PytestUnavailable(
            f"expected pytest to start in the sandbox of {folder.node.host}; found {end!r} ({run.status}). Make "
            f"{sys.executable} able to import pytest there: the extra cascade-rl[swe] brings it"
        )
    found = _report(run.output, nonce)
    printed = _printed(run.output, nonce)
    if found is None:
        problem = f"no outcomes: {run.status}, exit code {run.exit_code}"
        return TestRun({}, run.cpu_seconds, folder.node, problem, printed)
    outcomes, seen = found
    if not all(canary.holds(path, outcomes) for canary, path in zip(canaries, (first, last), strict=True)):
        problem = "a test that must fail did not, or one that must pass did not"
        return TestRun({}, run.cpu_seconds, folder.node, problem, printed)
    own = {test: outcome for test, outcome in outcomes.items() if test.partition("::")[0] in tests}
    return TestRun(own, run.cpu_seconds, folder.node, seen=seen)


def _printed(output: str, nonce: str) -> str:
    lines = [line for line in output.splitlines() if line and not line.startswith(nonce)]
    return "\n".join(lines)[-PRINTED_CHARACTERS:]


class Canary:
    """Two tests with known outcomes and random names."""

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


def _report(output: str, nonce: str) -> tuple[dict[str, TestOutcome], Seen] | None:
    """The outcomes, and what was seen; None unless exactly one line has them. A second one comes from code that copied
    the nonce, and so does one that is malformed."""
    lines = [line.partition(" ")[2] for line in output.splitlines() if line.startswith(f"{nonce} {{")]
    if len(lines) != 1:
        return None
    try:
        report = json.loads(lines[0])
        outcomes = {test: TestOutcome(*map(str, outcome)) for test, outcome in report["outcomes"].items()}
        return outcomes, {int(number): set(map(str, forms)) for number, forms in report["seen"].items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
