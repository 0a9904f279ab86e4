"""Whether two values of a tool call's argument mean the same.

Texts are the same character by character: code, commands, operators, identifiers, the order of words and every `not`
make another call. Plain words alone may differ in case and in the width of spaces, since `Rome` and `rome ` are one
city (BFCL compares all texts so). A row may say that an argument is free text (`similar_text`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from typing import Any
from unicodedata import normalize

import regex

TOLERANCE = Fraction(1, 10**6)  # of numbers, unless both are integers: absolute as in Gym, but relative below 1
NEGATIONS = {"cannot", "except", "neither", "never", "no", "nobody", "none", "nor", "not", "nothing", "without"}
_WORD = regex.compile(r"[\p{L}\p{M}]++(?:['\u2019-][\p{L}\p{M}]++)*+[,.;:!?]?")
_NUMBER = regex.compile(r"[0-9]+[,.;:!?]?")
_INNER_CAPITAL = regex.compile(r"\p{Ll}\p{M}*\p{Lu}")

SameText = Callable[[str, str], bool]


def same_text(given: str, expected: str) -> bool:
    """Whether texts of one line are equal, spaces at their end aside, or have the same plain words, a last full stop
    aside. Longer texts have to be equal."""
    if given == expected:
        return True
    if "\n" in given + expected:
        return False
    if given.rstrip() == expected.rstrip():
        return True
    words = _plain_words(given)
    # The answer itself is not normalised: Unicode sorts a run of accents in quadratic time.
    return words is not None and words in [_plain_words(normalize(form, expected)) for form in ("NFC", "NFD")]


def _plain_words(text: str) -> list[str] | None:
    """The words of `text` without their case, or None if any is neither a word nor a number.

    A capital after a small letter belongs to a name of code (`getUser`), so that case counts in such words.
    """
    words = text.split()
    if not words or not all(_WORD.fullmatch(word) or _NUMBER.fullmatch(word) for word in words):
        return None
    words[-1] = words[-1].removesuffix(".")
    return [word if _INNER_CAPITAL.search(word) else word.casefold() for word in words]


def similar_text(given: str, expected: str, threshold: float) -> bool:
    """Whether free texts share enough words: common words over the words of both, which is at most 0.5 (Gym's measure).

    Whatever is not a plain word (numbers, identifiers, operators), and each negation, has to be in both.
    """
    if same_text(given, expected):
        return True
    words = [_loose_words(text) for text in (given, expected)]
    exact = [Counter({word: count for word, count in each.items() if _is_exact(word)}) for each in words]
    totals = [each.total() for each in words]
    shared = (words[0] & words[1]).total() / max(1, sum(totals))
    return min(totals) > 1 and exact[0] == exact[1] and shared >= threshold


def _loose_words(text: str) -> Counter[str]:
    return Counter(word.casefold().rstrip(",.;:!?") if _WORD.fullmatch(word) else word for word in text.split())


def _is_exact(word: str) -> bool:
    return word in NEGATIONS or word.endswith(("n't", "n\u2019t")) or not _WORD.fullmatch(word)


def same_number(given: float, expected: float) -> bool:
    if given == expected or (isinstance(given, int) and isinstance(expected, int)):
        return given == expected
    left, right = Fraction(given), Fraction(expected)
    return abs(left - right) <= TOLERANCE * min(Fraction(1), abs(left), abs(right))


def same_value(given: Any, expected: Any, same: SameText = same_text) -> bool:
    """Whether two JSON values mean the same. `true` is not 1, and 1 is 1.0. Order counts in lists, not in objects."""
    if isinstance(expected, bool) or isinstance(given, bool) or expected is None:
        return given is expected
    if isinstance(expected, int | float):
        return isinstance(given, int | float) and same_number(given, expected)
    if type(given) is not type(expected):
        return False
    if isinstance(expected, str):
        return same(given, expected)
    if isinstance(expected, dict):
        return given.keys() == expected.keys() and all(same_value(given[key], expected[key], same) for key in expected)
    return len(given) == len(expected) and all(same_value(*pair, same) for pair in zip(given, expected, strict=True))
