r"""Answers in words, such as `\text{Monday}`."""

import re

_WORDS = re.compile(r"\(?\s*((?:\\text\s*\{[^{}\d\\$]*\}|[A-Za-z' -])+)\s*\)?")
LONGEST_PRODUCT = 3  # letters that may be a product of variables, such as abc


def same_words(expected: str, given: str) -> bool | None:
    """Whether two words or phrases are the same, upper or lower case; None if one may be mathematics."""
    one, other = _plain(expected), _plain(given)
    if one is None or other is None:
        return None
    if max(len(one), len(other)) <= LONGEST_PRODUCT and "\\text" not in expected + given:
        return None
    return one == other


def _plain(text: str) -> str | None:
    found = _WORDS.fullmatch(text.strip())
    return found and re.sub(r"\\text|[^A-Za-z]", "", found[1]).casefold()
