"""The registry of constraints, and the functions that split a text into words and paragraphs."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise

import regex

Check = Callable[..., bool]
CHECKS: dict[str, Check] = {}
RELATIONS = ("less than", "at least")

_PART = regex.compile(r"\w+")
_ASCII_PART = re.compile(r"\w+")
_WORD = regex.compile(r"\w+(?:[-'\u2019]\w+)*")
_PUNCTUATION = str.maketrans("", "", string.punctuation + "\u201c\u201d\u2018\u2019\u2026\u2013\u2014")


def instruction(name: str) -> Callable[[Check], Check]:
    """Registers a check under its IFEval id. Its keyword-only parameters are the row's kwargs."""

    def register(check: Check) -> Check:
        CHECKS[name] = check
        return check

    return register


def listed(text: str) -> list[str]:
    return text.split()


def compare(count: int, relation: str, limit: int) -> bool:
    return count < limit if relation == "less than" else count >= limit


def nonempty_parts(parts: Sequence[str]) -> list[str]:
    """The non-blank parts of a split. Only the first and the last may be blank; if another one is, []."""
    if not all(part.strip() for part in parts[1:-1]):
        return []
    return [part for part in parts if part.strip()]


def word_parts(text: str) -> list[str]:
    """The runs of letters, digits and combining marks. `re`, which knows no marks, is faster where there are none."""
    return (_ASCII_PART if text.isascii() else _PART).findall(text)


def words(text: str) -> list[str]:
    """Words without punctuation; a hyphen or an apostrophe inside belongs to its word."""
    return _WORD.findall(text)


def bare_words(text: str) -> list[str]:
    """The words between spaces, in lower case and without their punctuation."""
    return text.lower().translate(_PUNCTUATION).split()


def occurrences(answer: str, keyword: str) -> int:
    """How often `keyword` occurs in `answer` as whole words, ignoring case."""
    return len(_whole_word(keyword).findall(answer))


@lru_cache(maxsize=1024)
def _whole_word(keyword: str) -> regex.Pattern[str]:
    return regex.compile(rf"(?<!\w){regex.escape(keyword.strip())}(?!\w)", regex.IGNORECASE)


def spans(text: str, opening: str, closing: str) -> list[str]:
    """The parts of each line from an `opening` to the next `closing`, both included, none in another."""
    found: list[str] = []
    for line in text.split("\n"):
        start = line.find(opening)
        while start >= 0 and (end := line.find(closing, start + len(opening))) >= 0:
            found.append(line[start : end + len(closing)])
            start = line.find(opening, end + len(closing))
    return found


def rising(counts: Sequence[int]) -> bool:
    """Whether there are two or more numbers, each larger than the one before."""
    return len(counts) > 1 and all(before < after for before, after in pairwise(counts))
