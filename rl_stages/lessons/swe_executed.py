"""One-line functions with the wrong number. The name says which one is right; hidden tests check the answer."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from cascade_rl.rl_stages.lessons.lesson import Lesson, Row
from cascade_rl.rl_stages.lessons.swe_agentless import FILE, repair_lesson, source
from cascade_rl.rl_stages.rewards.swe.unified_diff import unified_diff

FUNCTIONS = {"double": ("*", 2), "triple": ("*", 3), "half": ("//", 2), "next": ("+", 1), "last": ("-", 1)}
NUMBERS = (1, 2, 3, 4, 5, 6)
PARAMETERS = ("a", "b", "x", "y", "n", "m", "p", "q")
CALLS = (4, 6, 12)
TESTED = (0, 12, 30)
TESTS = "test_f.py"


def lessons() -> Iterator[Lesson]:
    """Every distinct prompt, in a fixed order."""
    for name, wrong, parameter, call in product(FUNCTIONS, NUMBERS, PARAMETERS, CALLS):
        if wrong != FUNCTIONS[name][1]:
            yield lesson(name, wrong, parameter, call)


def lesson(name: str, wrong: int, parameter: str, call: int) -> Lesson:
    operator, number = FUNCTIONS[name]
    right, bug = f"{parameter} {operator} {number}", f"{parameter} {operator} {wrong}"
    others = [f"{parameter} {operator} {other}" for other in NUMBERS if other not in (number, wrong)]
    files, repaired = source(name, parameter, bug), source(name, parameter, right)

    def value(body: str, argument: int) -> int:
        return int(eval(body, {parameter: argument}))

    issue = f"{name}({call}) should give {value(right, call)}."
    cases = {argument: value(right, argument) for argument in TESTED}
    nodes = {argument: f"{TESTS}::test_{argument}" for argument in TESTED}
    fields: Row = {
        "instance_id": f"{name}-{wrong}-{parameter}-{call}",
        "problem_statement": issue,
        "repo_snapshot": {"files": files, "tests": {TESTS: tests(name, cases)}},
        "FAIL_TO_PASS": [nodes[argument] for argument in TESTED if value(bug, argument) != cases[argument]],
        "PASS_TO_PASS": [nodes[argument] for argument in TESTED if value(bug, argument) == cases[argument]],
        "gold_patch": unified_diff(files, repaired),
    }
    return repair_lesson(files, issue, fields, bug, right, others)


def tests(name: str, cases: dict[int, int]) -> str:
    functions = [
        f"def test_{argument}():\n    assert {name}({argument}) == {value}\n" for argument, value in cases.items()
    ]
    return "\n\n".join([f"from {FILE.removesuffix('.py')} import {name}\n", *functions])
