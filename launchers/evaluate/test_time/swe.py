"""Best of several repairs of a repository, chosen by tests: the repository's own, and such as the model writes to
reproduce the issue (arXiv 2512.13607, after Agentless, arXiv 2407.01489).

    write repairs, and tests that reproduce the issue; keep the tests that fail before any repair
    run each different repair with these tests and with those of the repository that pass before it
    hand in the repair that passes most; of equals the one that was written most often, then the shortest
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cascade_rl.engine.core.errors import UserError
from cascade_rl.launchers.evaluate.test_time.steps import Ask, Reply, RunTests, Steps, follow_up
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.rewards.swe.grading import TestRun, applicable, objection
from cascade_rl.rl_stages.rewards.swe.instance import Instance
from cascade_rl.rl_stages.rewards.swe.patch import PatchError, apply_edits, parse_edits
from cascade_rl.rl_stages.rewards.swe.repository import Repository
from cascade_rl.rl_stages.rewards.swe.unified_diff import unified_diff

DOMAIN = "swe_executed"
REQUEST = (
    "Do not repair the code yet. Write a module of pytest tests that reproduce the issue: they fail now, and pass once "
    "it is solved. Answer with the module in one ```python block."
)
_BLOCK = re.compile(r"```(?:python)?\n(.*?)```", re.DOTALL)
Patch = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Repair:
    """`patch`: the new text of the files that it changes, by path."""

    reply: Reply
    patch: Patch


def swe(task: Task, repairs: int, tests: int) -> Steps:
    """`tests`: modules of reproduction tests. Raises UserError for a task without a repository to run."""
    if task.domain != DOMAIN:
        raise UserError(f"expected a task of {DOMAIN}, whose repository can be run; found {task.domain}")
    repository = Instance.of(task.metadata).repository
    replies, written = yield [Ask(task.messages, repairs), Ask(follow_up(task, REQUEST), tests)]
    found = [repair for reply in replies if (repair := _repair(repository, reply))]
    if not found:
        return replies[0]
    modules = _modules(written)
    before, *alone = yield RunTests([repository, *(_with_only(repository, module) for module in modules.items())])
    reproducing = [path for path, run in zip(modules, alone, strict=True) if "failed" in run.results.values()]
    regression = [test for test in before.outcomes if before.passed(test)]
    votes = Counter(repair.patch for repair in found)
    tested = repository.with_other({path: modules[path] for path in reproducing})
    runs = yield RunTests([tested.changed(dict(patch)) for patch in votes])
    passes = {patch: _passes(run, regression, reproducing) for patch, run in zip(votes, runs, strict=True)}
    return max(found, key=lambda one: (passes[one.patch], votes[one.patch], -_length(repository, one.patch))).reply


def _repair(repository: Repository, reply: Reply) -> Repair | None:
    """None for an answer that changes nothing, or that grading would not run."""
    try:
        changed = applicable(repository.files, apply_edits(repository.files, parse_edits(reply.answer)))
    except PatchError:
        return None
    if not changed or objection(repository.files, changed):
        return None
    return Repair(reply, tuple(sorted(changed.items())))


def _modules(written: Iterable[Reply]) -> dict[str, str]:
    """The different test modules by path."""
    blocks = dict.fromkeys(found[-1] for reply in written if (found := _BLOCK.findall(reply.answer)))
    return {f"test_reproduction_{number}.py": block for number, block in enumerate(blocks)}


def _with_only(repository: Repository, module: tuple[str, str]) -> Repository:
    """A module that cannot be imported ends the run of all others, so each is first run alone."""
    return Repository(repository.files, dict([module]))


def _passes(run: TestRun, regression: Sequence[str], reproducing: Sequence[str]) -> int:
    """The regression tests that pass, and the reproduction modules of which all tests do."""
    modules = [
        [outcome for test, outcome in run.results.items() if test.partition("::")[0] == path] for path in reproducing
    ]
    return sum(map(run.passed, regression)) + sum(set(outcomes) == {"passed"} for outcomes in modules)


def _length(repository: Repository, patch: Patch) -> int:
    return len(unified_diff(repository.files, {**repository.files, **dict(patch)}))
