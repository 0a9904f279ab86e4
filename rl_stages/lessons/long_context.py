"""A text of short sentences that hides a few facts, and a question about one, about two, or about their number.

An answer repeats the fact's name and value. A text holds only the keys that are asked for. To tell one name's key from
another's took a model of a million parameters more than 6,400 examples (measured here); questions about two keys teach
that.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from cascade_rl.rl_stages.lessons.instruction_following import ADJECTIVES, TOPICS
from cascade_rl.rl_stages.lessons.lesson import Lesson
from cascade_rl.rl_stages.lessons.math import NAMES

PER_KIND = 1000
FILLERS = (4, 14)
VALUES = tuple(map(str, range(1, 10)))  # in no other sentence, so that only whose they are is left to learn
HIGHEST_COUNT = 3
KEY, KEEPS = "The key of {name} is {value}.", "{name} has a {value}."
FILLER = "The {topic} is {adjective}."


def lessons() -> Iterator[Lesson]:
    """Distinct prompts, the same at every call."""
    rng = random.Random(0)
    seen: set[str] = set()
    while len(seen) < PER_KIND * len(KINDS):
        lesson = KINDS[len(seen) % len(KINDS)](rng)
        if lesson.prompt not in seen:
            seen.add(lesson.prompt)
            yield lesson


def needle(rng: random.Random) -> Lesson:
    keys = _keys(1, rng)
    ((name, value),) = keys.items()
    others = [other for other in VALUES if other != value]

    def wrong(other: random.Random) -> str:
        return f"{name} is {other.choice(others)}"

    return _lesson("needle", _key_sentences(keys), f"What is the key of {name}?", f"{name} is {value}", wrong, rng)


def multi_key(rng: random.Random) -> Lesson:
    keys = _keys(2, rng)
    one, two = keys
    values = [f"{name} is {keys[name]}" for name in (one, two)]

    def wrong(other: random.Random) -> str:
        return f"{one} is {keys[two]}, {two} is {keys[one]}"

    question = f"What are the keys of {one} and {two}?"
    return _lesson("multi_key", _key_sentences(keys), question, values, wrong, rng)


def counting(rng: random.Random) -> Lesson:
    name, *others = rng.sample(NAMES, 3)
    count = rng.randint(1, HIGHEST_COUNT)
    owners = [name] * count + rng.choices(others, k=rng.randint(1, HIGHEST_COUNT))
    things = rng.sample(TOPICS, len(owners))
    sentences = [KEEPS.format(name=owner, value=value) for owner, value in zip(owners, things, strict=True)]

    def wrong(other: random.Random) -> str:
        return f"{name} has {other.choice([number for number in range(1, HIGHEST_COUNT + 1) if number != count])}"

    return _lesson("aggregation", sentences, f"How many things does {name} have?", f"{name} has {count}", wrong, rng)


KINDS = (needle, multi_key, counting)


def _keys(count: int, rng: random.Random) -> dict[str, str]:
    return dict(zip(rng.sample(NAMES, count), rng.sample(VALUES, count), strict=True))


def _key_sentences(keys: dict[str, str]) -> list[str]:
    return [KEY.format(name=name, value=value) for name, value in keys.items()]


def _lesson(
    kind: str,
    facts: list[str],
    question: str,
    expected: str | list[str],
    wrong: Callable[[random.Random], str],
    rng: random.Random,
) -> Lesson:
    fillers = [
        FILLER.format(topic=rng.choice(TOPICS), adjective=rng.choice(ADJECTIVES)) for _ in range(rng.randint(*FILLERS))
    ]
    text = rng.sample(facts + fillers, len(facts) + len(fillers))
    right = expected if isinstance(expected, str) else ", ".join(expected)
    fields = {"long_context_kind": kind, "expected_answer": expected}
    return Lesson(" ".join([*text, question]), fields, lambda _: right, wrong)
