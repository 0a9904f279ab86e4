"""Small JSON objects with two keys, each of a type that the prompt names."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import permutations, product

from cascade_rl.rl_stages.lessons.lesson import Lesson, Row

KEYS = ("name", "city", "age", "price", "size", "open")
TYPES = {
    "text": ("string", ("Tom", "Ann", "red", "blue")),
    "a number": ("integer", (2, 3, 5, 7)),
    "true or false": ("boolean", (True, False)),
}
PROMPTS = (
    "Write JSON: {one} as {first}, {other} as {second}.",
    "Give me JSON with {one} ({first}) and {other} ({second}).",
)


def lessons() -> Iterator[Lesson]:
    """Every distinct prompt, in a fixed order."""
    for keys, types, text in product(permutations(KEYS, 2), product(TYPES, repeat=2), PROMPTS):
        yield lesson(text.format(one=keys[0], first=types[0], other=keys[1], second=types[1]), keys, types)


def lesson(prompt: str, keys: tuple[str, ...], types: tuple[str, ...]) -> Lesson:
    properties = {key: {"type": TYPES[name][0]} for key, name in zip(keys, types, strict=True)}
    schema = {"type": "object", "properties": properties, "required": list(keys)}
    return Lesson(
        prompt,
        {"schema_str": json.dumps(schema), "schema_type": "json"},
        lambda rng: document(keys, types, rng),
        lambda rng: document(keys, mistaken(types, rng), rng),
    )


def document(keys: tuple[str, ...], types: tuple[str, ...], rng: random.Random) -> str:
    values: Row = {key: rng.choice(TYPES[name][1]) for key, name in zip(keys, types, strict=True)}
    return json.dumps(values)


def mistaken(types: tuple[str, ...], rng: random.Random) -> tuple[str, ...]:
    """The types with one of them replaced by another."""
    place = rng.randrange(len(types))
    other = rng.choice([name for name in TYPES if name != types[place]])
    return (*types[:place], other, *types[place + 1 :])
