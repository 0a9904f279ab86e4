"""Repairs of one-line functions: read the file, change the wrong sign, submit."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product

from cascade_rl.rl_stages.lessons.lesson import Lesson, Message, calling, showing
from cascade_rl.rl_stages.rewards.swe.unified_diff import unified_diff

FILES = ("apples", "books", "cups", "shells", "boxes", "coins")
FUNCTIONS = ("total", "left", "count", "size", "sum", "value")
SIGNS = {"plus": "+", "minus": "-", "times": "*"}
PROMPTS = (
    "Repair {function} in {file}.py: it must be a {word} b.",
    "In {file}.py {function} must be a {word} b.",
    "The {function} of {file}.py is wrong: it must be a {word} b.",
    "Find {function} in {file}.py and make it a {word} b.",
)


def lessons() -> Iterator[Lesson]:
    """Every distinct prompt, in a fixed order."""
    for file, function, word, text in product(FILES, FUNCTIONS, SIGNS, PROMPTS):
        yield lesson(text.format(file=file, function=function, word=word), f"{file}.py", function, word)


def lesson(prompt: str, file: str, function: str, word: str) -> Lesson:
    sign = SIGNS[word]
    wrong_sign = random.Random(prompt).choice([other for other in SIGNS.values() if other != sign])
    broken, repaired = source(function, wrong_sign), source(function, sign)

    def turns(chosen: str) -> list[Message]:
        edit = f"sed -i s/{wrong_sign}/{chosen}/ {file}"
        read = [calling("bash", command=f"cat {file}"), showing(broken)]
        return [*read, calling("bash", command=edit), showing(""), calling("submit")]

    def wrong(rng: random.Random) -> list[Message]:
        return turns(rng.choice([other for other in SIGNS.values() if other != sign]))

    return Lesson(
        prompt, instance(prompt, file, broken, repaired, test(file, function, sign)), lambda _: turns(sign), wrong
    )


def source(function: str, sign: str) -> str:
    return f"def {function}(a, b):\n    return a {sign} b\n"


def test(file: str, function: str, sign: str) -> str:
    """A test whose numbers tell the three signs apart."""
    value = {"+": 7, "-": 3, "*": 10}[sign]
    module = file.removesuffix(".py")
    return f"from {module} import {function}\n\n\ndef test_value():\n    assert {function}(5, 2) == {value}\n"


def instance(prompt: str, file: str, broken: str, repaired: str, test_source: str) -> dict:
    """An executed SWE row's fields (rewards/swe/instance.py)."""
    test_file = f"test_{file}"
    return {
        "instance_id": prompt,
        "problem_statement": prompt,
        "repo_snapshot": {"files": {file: broken}, "tests": {test_file: test_source}},
        "FAIL_TO_PASS": [f"{test_file}::test_value"],
        "gold_patch": unified_diff({file: broken}, {file: repaired}),
    }
