"""The registry of constraints, and the functions that split a text into words, sentences and paragraphs."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Sequence
from itertools import pairwise

Check = Callable[..., bool]
CHECKS: dict[str, Check] = {}
RELATIONS = ("less than", "at least")

_WORD = re.compile(r"\w+(?:[-'\u2019]\w+)*")
_ABBREVIATION_DOT = re.compile(r"\b(Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|Inc|Ltd|Co|vs|etc|e\.g|i\.e|[A-Z])\.")
_SENTENCE_END = re.compile(r"[.!?]+[\"')\]*]*\s+")
_AFTER_SENTENCE = re.compile(r"(?<=[.!?\u2026])[\"')\]*\u201d\u2019]*\s+")
_PUNCTUATION = str.maketrans("", "", string.punctuation + "\u201c\u201d\u2018\u2019\u2026\u2013\u2014")


def instruction(name: str) -> Callable[[Check], Check]:
    """Registers a check under its IFEval id. Its keyword-only parameters are the row's kwargs."""

    def register(check: Check) -> Check:
        CHECKS[name] = check
        return check

    return register


def compare(count: int, relation: str, limit: int) -> bool:
    return count < limit if relation == "less than" else count >= limit


def split_sentences(text: str) -> list[str]:
    """The sentences of `text`. Titles, initials and the like do not end one."""
    protected = _ABBREVIATION_DOT.sub(r"\1", text)
    return [part for part in _SENTENCE_END.split(protected) if part.strip()]


def nonempty_parts(parts: Sequence[str]) -> list[str]:
    """The non-blank parts of a split. Only the first and the last may be blank; if another one is, []."""
    if not all(part.strip() for part in parts[1:-1]):
        return []
    return [part for part in parts if part.strip()]


def sentences(text: str) -> list[str]:
    """As `split_sentences`, each with its closing punctuation."""
    protected = _ABBREVIATION_DOT.sub(r"\1", text)
    return [part.strip() for part in _AFTER_SENTENCE.split(protected) if part.strip()]


def words(text: str) -> list[str]:
    """Words without punctuation; a hyphen or an apostrophe inside belongs to its word."""
    return _WORD.findall(text)


def bare_words(text: str) -> list[str]:
    """The words between spaces, in lower case and without their punctuation."""
    return text.lower().translate(_PUNCTUATION).split()


def rising(counts: Sequence[int]) -> bool:
    """Whether there are two or more numbers, each larger than the one before."""
    return len(counts) > 1 and all(before < after for before, after in pairwise(counts))
