"""One-line programs: a number that is read and changed, or a function of one or two numbers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product

from cascade_rl.rl_stages.lessons.lesson import Lesson, Row

SIGNS = {"plus": "+", "minus": "-", "times": "*"}
CONSTANTS = range(2, 10)
FUNCTIONS = ("f", "g", "h")
READERS = ("Read a number and print it {word} {k}.", "Print the number that you read {word} {k}.")
WRITERS = ("Write a function {name} of x that returns x {word} {k}.", "Write {name}(x): it returns x {word} {k}.")
PAIRS = (
    "Write {name}(a, b) that returns a {first} b {second} {k}.",
    "Write {name}(a, b): it returns a {first} b {second} {k}.",
)
NUMBERS = (0, 1, 7, 12)  # inputs of the tests
PAIRS_OF_NUMBERS = ((0, 7), (1, 12), (7, 1), (12, 12))


def lessons() -> Iterator[Lesson]:
    """Every distinct prompt, in a fixed order."""
    for text, word, k in product(READERS, SIGNS, CONSTANTS):
        yield reader(text.format(word=word, k=k), word, k)
    for text, name, word, k in product(WRITERS, FUNCTIONS, SIGNS, CONSTANTS):
        yield writer(text.format(name=name, word=word, k=k), name, word, k)
    for text, name, first, second, k in product(PAIRS, FUNCTIONS, SIGNS, SIGNS, CONSTANTS):
        yield pair(text.format(name=name, first=first, second=second, k=k), name, first, second, k)


def reader(prompt: str, word: str, k: int) -> Lesson:
    tests = {
        "inputs": [f"{x}\n" for x in NUMBERS],
        "outputs": [f"{value(x, word, k)}\n" for x in NUMBERS],
    }
    return _lesson(prompt, tests, "print(int(input()) {} {})", (word,), k)


def writer(prompt: str, name: str, word: str, k: int) -> Lesson:
    tests = {
        "inputs": [str(x) for x in NUMBERS],
        "outputs": [str(value(x, word, k)) for x in NUMBERS],
        "fn_name": name,
    }
    return _lesson(prompt, tests, f"def {name}(x): return x {{}} {{}}", (word,), k)


def pair(prompt: str, name: str, first: str, second: str, k: int) -> Lesson:
    tests = {
        "inputs": [f"{a}\n{b}" for a, b in PAIRS_OF_NUMBERS],
        "outputs": [str(pair_value(a, b, first, second, k)) for a, b in PAIRS_OF_NUMBERS],
        "fn_name": name,
    }
    return _lesson(prompt, tests, f"def {name}(a, b): return a {{}} b {{}} {{}}", (first, second), k)


def value(x: int, word: str, k: int) -> int:
    return {"plus": x + k, "minus": x - k, "times": x * k}[word]


def pair_value(a: int, b: int, first: str, second: str, k: int) -> int:
    """`times` binds tighter, as in the program."""
    if second == "times":
        return value(a, first, b * k)
    return value(value(a, first, b), second, k)


def _lesson(prompt: str, tests: Row, template: str, words: tuple[str, ...], k: int) -> Lesson:
    def answer(words: tuple[str, ...], k: int) -> str:
        return f"```\n{template.format(*(SIGNS[word] for word in words), k)}\n```"

    def wrong(rng: random.Random) -> str:
        """The program with one sign or the number changed."""
        place = rng.randrange(len(words) + 1)
        if place == len(words):
            return answer(words, rng.choice([other for other in CONSTANTS if other != k]))
        slip = rng.choice([word for word in SIGNS if word != words[place]])
        return answer((*words[:place], slip, *words[place + 1 :]), k)

    return Lesson(prompt, {"verifier_metadata": {"unit_tests": tests}}, lambda _: answer(words, k), wrong)
