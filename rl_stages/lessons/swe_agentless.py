"""One-line functions with the wrong operator. The name says which one is right; the answer is the patch."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product

from cascade_rl.rl_stages.lessons.lesson import Lesson, Row
from cascade_rl.rl_stages.rewards.swe.patch import Edit, edit_text
from cascade_rl.rl_stages.rewards.swe.unified_diff import unified_diff

FILE = "f.py"
OPERATORS = {"add": "+", "minus": "-", "times": "*", "divide": "//"}
PARAMETERS = (("a", "b"), ("x", "y"), ("n", "m"), ("p", "q"))
CALLS = ((6, 2), (8, 2), (9, 3), (6, 3), (8, 4), (9, 2), (7, 3), (5, 2), (7, 2), (9, 4))


def lessons() -> Iterator[Lesson]:
    """Every distinct prompt, in a fixed order."""
    for name, wrong, (a, b), call in product(OPERATORS, OPERATORS.values(), PARAMETERS, CALLS):
        if wrong != OPERATORS[name]:
            yield lesson(name, wrong, (a, b), call)


def lesson(name: str, wrong: str, parameters: tuple[str, str], call: tuple[int, int]) -> Lesson:
    a, b = parameters
    bodies = {operator: f"{a} {operator} {b}" for operator in OPERATORS.values()}
    right, bug = bodies.pop(OPERATORS[name]), bodies.pop(wrong)
    files, repaired = source(name, f"{a}, {b}", bug), source(name, f"{a}, {b}", right)
    found, expected = (int(eval(body, dict(zip(parameters, call, strict=True)))) for body in (bug, right))
    fields: Row = {"files": files, "gold_patch": unified_diff(files, repaired)}
    shown = f"{name}({call[0]}, {call[1]})"
    return repair_lesson(files, f"{shown} gives {found}, not {expected}.", fields, bug, right, list(bodies.values()))


def source(name: str, parameters: str, body: str) -> dict[str, str]:
    return {FILE: f"def {name}({parameters}):\n    return {body}\n"}


def repair_lesson(files: dict[str, str], issue: str, fields: Row, bug: str, right: str, others: list[str]) -> Lesson:
    """The right patch turns `return bug` into `return right`; a wrong one returns one of `others`."""

    def patch(body: str) -> str:
        return edit_text(Edit(FILE, f"    return {bug}", f"    return {body}"))

    def wrong(rng: random.Random) -> str:
        return patch(rng.choice(others))

    return Lesson(f"### {FILE}\n{files[FILE]}{issue}", fields, lambda _: patch(right), wrong)
