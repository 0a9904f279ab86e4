"""Makes SWE tasks by mutating an installed package that has tests; used by `cascade swe-tasks`."""

from __future__ import annotations

import ast
import hashlib
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import batched
from pathlib import Path
from typing import Any

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.rewards.swe.grading import TEST_LIMITS, TestRun, grade, hides_a_value, run_tests
from cascade_rl.rl_stages.rewards.swe.instance import Instance, parse_instance
from cascade_rl.rl_stages.rewards.swe.other_copies import require_hideable
from cascade_rl.rl_stages.rewards.swe.repository import Repository, can_be_patched, installed_package
from cascade_rl.rl_stages.rewards.swe.unified_diff import unified_diff
from cascade_rl.rl_stages.sandbox import Sandbox, cores
from cascade_rl.rl_stages.swe_tasks.issue_text import issue_text
from cascade_rl.rl_stages.swe_tasks.mutation import Mutation, mutations
from cascade_rl.rl_stages.swe_tasks.task_rows import task_rows

MOST_FAILING = 10  # a bug that breaks everything makes no useful task

Row = dict[str, Any]


@dataclass
class Report:
    """How the mutants fared: "kept", "survived", "too many fail", "no outcomes", "unrepaired", "no value to hide"."""

    fates: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def text(self) -> str:
        tried, kept = self.fates.total(), self.fates["kept"]
        fates = ", ".join(f"{fate} {count} ({count / tried:.0%})" for fate, count in self.fates.most_common())
        kinds = ", ".join(f"{kind} {count}" for kind, count in self.kinds.most_common())
        rate = f"{self.seconds / tried:.2f} s per mutant, {3600 * kept / self.seconds:.0f} tasks per hour"
        return f"{tried} mutants: {fates}\nkept by kind: {kinds or 'none'}\n{rate} on {cores()} slots"


def write_tasks(package: str, out: Path, domain: str, count: int, seed: int) -> Report:
    """Writes the rows of `count` bugs to `out` and the repository next to it; fewer if the package's mutants run out.

    UserError as in `installed_package`, if pytest needs the package, and if none of its own tests passes here.
    """
    repository = installed_package(package)
    require_hideable(repository)
    snapshot = out.with_suffix(".snapshot.json").resolve()
    content = repository.as_json().encode()
    reference = {"path": str(snapshot), "sha256": hashlib.sha256(content).hexdigest()}
    report = Report()
    start = time.monotonic()
    with Sandbox(cores()) as sandbox, out.open("w") as rows:
        snapshot.write_bytes(content)
        maker = TaskMaker(package, repository, reference, sandbox)
        for fields in maker.tasks(count, seed, report):
            rows.writelines(json.dumps(row) + "\n" for row in task_rows(domain, fields))
    report.seconds = time.monotonic() - start
    return report


class TaskMaker:
    """Tries mutants of a repository. UserError if none of the repository's tests passes."""

    def __init__(self, package: str, repository: Repository, reference: Row, sandbox: Sandbox) -> None:
        self._package = package
        self._repository = repository
        self._reference = reference
        self._sandbox = sandbox
        run = run_tests(repository, sandbox)
        # Many mutants never terminate.
        self._limits = replace(TEST_LIMITS, cpu_seconds=2 + 3 * run.cpu_seconds)
        self._passing = frozenset(test for test in run.outcomes if run.passed(test))
        if not self._passing:
            raise UserError(f"{package}: expected its tests to pass here; found none that passes: {run.problem}")

    def tasks(self, count: int, seed: int, report: Report) -> Iterator[Row]:
        """Fields of executed SWE rows (rewards/swe/instance.py); the same seed gives the same ones.

        Each is verified: the bug makes tests fail that passed, and the golden patch scores 1.
        """
        sites = [
            (path, mutation)
            for path, source in sorted(self._repository.files.items())
            if can_be_patched(path) and parses(source)
            for mutation in mutations(source)
        ]
        random.Random(seed).shuffle(sites)
        with ThreadPoolExecutor(cores()) as pool:
            for batch in batched(sites, cores()):
                for (_, mutation), (fate, row) in zip(batch, pool.map(self._try, batch), strict=True):
                    if report.fates["kept"] == count:
                        return
                    report.fates[fate] += 1
                    if row:
                        report.kinds[mutation.kind] += 1
                        yield row

    def _try(self, site: tuple[str, Mutation]) -> tuple[str, Row | None]:
        path, mutation = site
        buggy = mutation.apply(self._repository.files[path])
        if not parses(buggy):
            return "no outcomes", None
        run = run_tests(self._repository.changed({path: buggy}), self._sandbox, self._limits)
        failing = sorted(test for test in self._passing if not run.passed(test))
        if not run.outcomes:
            return "no outcomes", None
        if not failing:
            return "survived", None
        if len(failing) > MOST_FAILING:
            return "too many fail", None
        row = self._fields(path, mutation, buggy, failing, run)
        instance = Instance.of(parse_instance(row))
        if grade(instance, instance.repaired, self._sandbox).score != 1.0:
            return "unrepaired", None
        return ("kept", row) if hides_a_value(instance, self._sandbox) else ("no value to hide", None)

    def _fields(self, path: str, mutation: Mutation, buggy: str, failing: list[str], run: TestRun) -> Row:
        messages = {test: run.outcomes[test].message if test in run.outcomes else "" for test in failing}
        return {
            "instance_id": f"{self._package}-{path}-{mutation.line}-{mutation.start}-{mutation.kind}".replace(" ", "_"),
            "problem_statement": issue_text(self._package, messages),
            "repo_snapshot": self._reference,
            "bug": {path: buggy},
            "FAIL_TO_PASS": failing,
            "PASS_TO_PASS": sorted(self._passing - set(failing)),
            "gold_patch": unified_diff({path: buggy}, {path: self._repository.files[path]}),
        }


def parses(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True
