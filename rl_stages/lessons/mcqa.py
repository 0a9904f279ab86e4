"""Which of three words is an animal, a fruit, a colour or a tool.

An answer names the word, then its letter. A tiny model learns these two steps one by one, but not both at once.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product

from cascade_rl.rl_stages.lessons.lesson import Lesson

KINDS = {
    "an animal": ("dog", "cat", "cow"),
    "a fruit": ("apple", "plum", "fig"),
    "a colour": ("red", "blue", "green"),
    "a tool": ("saw", "axe", "drill"),
}
PROMPTS = ("Which one is {kind}?", "Choose {kind}.")
LETTERS = "ABC"
VARIANTS = 32  # per word and phrase, with different wrong options


def lessons() -> Iterator[Lesson]:
    """Every distinct prompt, in a fixed order."""
    every = {made.prompt: made for made in _drawn()}
    yield from every.values()


def _drawn() -> Iterator[Lesson]:
    for kind, text, variant in product(KINDS, PROMPTS, range(VARIANTS)):
        for word in KINDS[kind]:
            yield lesson(kind, word, text.format(kind=kind), random.Random(f"{word} {text} {variant}"))


def lesson(kind: str, word: str, question: str, rng: random.Random) -> Lesson:
    """`rng` picks the two wrong options and the order of the three."""
    others = [words for name, words in KINDS.items() if name != kind]
    options = [word, *(rng.choice(words) for words in rng.sample(others, len(LETTERS) - 1))]
    rng.shuffle(options)
    prompt = "\n".join([question, *(f"{letter}: {option}" for letter, option in zip(LETTERS, options, strict=True))])
    fields = {
        "options": [{letter: option} for letter, option in zip(LETTERS, options, strict=True)],
        "expected_answer": LETTERS[options.index(word)],
    }
    missed = [option for option in options if option != word]

    def choosing(option: str) -> str:
        return f"{option}: \\boxed{{{LETTERS[options.index(option)]}}}"

    return Lesson(prompt, fields, lambda _: choosing(word), lambda rng: choosing(rng.choice(missed)))
