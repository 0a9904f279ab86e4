"""One-step sums and differences of small numbers, plain or told as a story about a few names and things."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise, product

from cascade_rl.rl_stages.lessons.lesson import Lesson

NAMES = ("Tom", "Ann", "Sam", "Mia", "Ben", "Eva")
THINGS = ("apples", "books", "cups", "shells")
SUMS = tuple((a, "+", b) for a, b in product(range(2, 7), repeat=2))
DIFFERENCES = tuple((a, "-", b) for a in range(4, 11) for b in range(2, a - 1))
PLAIN = ("What is {a} {sign} {b}?", "Compute {a} {sign} {b}.", "Find the value of {a} {sign} {b}.")
STORIES = {
    "+": (
        "{name} has {a} {things} and finds {b} more. How many {things} does {name} have now?",
        "{name} has {a} {things} and {other} has {b}. How many {things} do they have?",
        "{name} buys {a} {things} and then {b} more. How many {things} is that?",
    ),
    "-": (
        "{name} has {a} {things} and loses {b}. How many {things} are left?",
        "{name} has {a} {things} and gives {other} {b}. How many {things} are left?",
        "{name} had {a} {things} and sold {b}. How many {things} does {name} have now?",
    ),
}
SLIPS = (-2, -1, 1, 2)


def lessons() -> Iterator[Lesson]:
    """Every distinct prompt, in a fixed order."""
    for a, sign, b in SUMS + DIFFERENCES:
        for text in PLAIN:
            yield lesson(text.format(a=a, b=b, sign=sign), a, sign, b)
        for text, (name, other), things in product(STORIES[sign], pairwise((*NAMES, NAMES[0])), THINGS):
            yield lesson(text.format(a=a, b=b, name=name, other=other, things=things), a, sign, b)


def lesson(prompt: str, a: int, sign: str, b: int) -> Lesson:
    value = a + b if sign == "+" else a - b

    def right(_: random.Random) -> str:
        return f"{a} {sign} {b} = \\boxed{{{value}}}"

    def wrong(rng: random.Random) -> str:
        return f"{a} {sign} {b} = \\boxed{{{max(value + rng.choice(SLIPS), 0)}}}"

    return Lesson(prompt, {"expected_answer": str(value)}, right, wrong)
