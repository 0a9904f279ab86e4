"""Programs whose score is known, in the languages of a stage's rows. The rows themselves have no solutions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from cascade_rl.rl_stages.core.exemplar import Exemplar
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.rewards.verifiers.programs.code_rows import SpecialJudge, parse_row

if TYPE_CHECKING:
    from cascade_rl.rl_stages.rewards.verifiers.programs.code_rows import Problem

ROWS = 64  # whose languages are looked at
TESTS = {"inputs": ["1\n2\n", "5\n7\n"], "outputs": ["3\n", "12\n"]}
# By language, a program that passes TESTS and one that does nothing.
PROGRAMS = {
    "python": ("print(int(input()) + int(input()))", "pass"),
    "cpp": ("#include <iostream>\nint main() { int a, b; std::cin >> a >> b; std::cout << a + b; }", "int main() {}"),
}


def exemplars(tasks: Iterable[Task]) -> Sequence[Sequence[Exemplar]]:
    """A problem for each language of the first rows, those of their special judges included."""
    used = {language for task in islice(tasks, ROWS) for language in _languages(task.metadata["problem"])}
    return [[_exemplar(language)] for language in sorted(used)]


def _languages(problem: Problem) -> Iterator[str]:
    yield problem.language
    if isinstance(problem.checker, SpecialJudge):
        yield problem.checker.language


def _exemplar(language: str) -> Exemplar:
    fields = parse_row({"verifier_metadata": {"unit_tests": TESTS, "language": language}})
    golden, empty = (f"```\n{source}\n```" for source in PROGRAMS[language])
    return Exemplar(f"sum in {language}", Task(language, "code", (), fields), (golden,), (empty,))
