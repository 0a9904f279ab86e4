"""Text of a given length in tokens: prose, and Python modules. A seed decides it."""

from __future__ import annotations

import random
from collections.abc import Iterator

# Characters a token of Tekken, a tokenizer of 131,072 entries as Nemotron-3's is: 2 to 4 % less than measured on these
# texts, so that a prompt is rather too short than too long.
PROSE, CODE = 3.9, 3.5

SENTENCES = (
    "The {adjective} {thing} stood beside the {place} until {name} moved it in {year}.",
    "In {year} the {place} had {number} visitors, although the {thing} was {adjective}.",
    "{name} wrote that the {thing} of the {place} cost {number} coins.",
    "Nobody at the {place} remembered why the {thing} had become so {adjective}.",
    "After {number} days {name} returned to the {place} with another {thing}.",
)
WORDS = {
    "adjective": ("heavy", "broken", "ancient", "modest", "silver", "narrow", "famous", "hollow", "plain", "bright"),
    "thing": ("ladder", "engine", "lantern", "bridge", "statue", "wheel", "barrel", "window", "ledger", "anchor"),
    "place": ("harbour", "library", "station", "orchard", "factory", "museum", "village", "mill", "quarry", "abbey"),
    "name": ("Ingrid", "Abel", "Tamsin", "Otis", "Juno", "Ravi", "Wren", "Lio", "Edda", "Noor"),
}
FUNCTION = '''

def {verb}_{noun}_{number}(values, limit={limit}):
    """Return the {noun} of the values below the limit."""
    found = [value for value in values if value < limit]
    return sum(found) // max(len(found), {least})
'''
VERBS, NOUNS = ("read", "count", "merge", "check", "split"), ("total", "weight", "offset", "margin", "balance")


def prose(tokens: int, seed: str) -> str:
    """About so many tokens of plain sentences; "" for none."""
    return _up_to(int(tokens * PROSE), _sentences(random.Random(seed)))


def module(tokens: int, seed: str) -> str:
    """About so many tokens of Python: functions with different names."""
    return _up_to(int(tokens * CODE), _functions(random.Random(seed))).lstrip("\n")


def _up_to(characters: int, parts: Iterator[str]) -> str:
    """Whole parts, together at most that long."""
    found, length = [], 0
    for part in parts:
        length += len(part)
        if length > characters:
            break
        found.append(part)
    return "".join(found)


def _sentences(rng: random.Random) -> Iterator[str]:
    while True:
        words = {kind: rng.choice(choices) for kind, choices in WORDS.items()}
        yield rng.choice(SENTENCES).format(**words, year=rng.randrange(1700, 2020), number=rng.randrange(2, 99)) + " "


def _functions(rng: random.Random) -> Iterator[str]:
    number = 0
    while True:
        number += 1
        names = {"verb": rng.choice(VERBS), "noun": rng.choice(NOUNS)}
        yield FUNCTION.format(**names, number=number, limit=rng.randrange(10, 999), least=rng.randrange(1, 9))
