r"""Answers in words, such as `\text{Monday}`, and whole numbers in words: "twelve", "two thousand five hundred".

"one hundred and five" is two values here, since "and" separates the values of a list.
"""

import re
from fractions import Fraction

_WORDS = re.compile(r"\(?\s*((?:\\text\s*\{[^{}\d\\$]*\}|[A-Za-z' -])+)\s*\)?")
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_ARTICLE = re.compile(r"(?:an?|the)\s+(?=\S)", re.IGNORECASE)
_LETTER = re.compile("[A-Za-z]")
_BETWEEN = re.compile(r"\s*(?:,\s*(?:(?:and|or)\b)?|\b(?:and|or)\b)\s*")
LONGEST_PRODUCT = 3  # letters that may be a product of variables, such as abc

_ONES = re.findall(
    r"\w+",
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen",
)
_TENS = re.findall(r"\w+", "twenty thirty forty fifty sixty seventy eighty ninety")
_VALUES = {word: value for value, word in enumerate(_ONES)} | {word: 10 * i for i, word in enumerate(_TENS, start=2)}
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9}

_SMALL = rf"(?:(?:{'|'.join(_TENS)})(?:[\s-]+(?:{'|'.join(_ONES[1:10])}))?|{'|'.join(reversed(_ONES))})(?![A-Za-z])"
_GROUP = re.compile(
    rf"\s*(?:(?P<hundreds>{'|'.join(_ONES[1:])})\s+hundred(?:\s+(?P<rest>{_SMALL}))?|(?P<small>{_SMALL}))"
    rf"(?:\s+(?P<scale>{'|'.join(_SCALES)})(?![A-Za-z]))?",
    re.IGNORECASE,
)


def listed_words(text: str) -> str:
    r"""`\text{red and blue}` as the list \text{red}, \text{blue}."""
    return _TEXT.sub(_as_list, text)


def _as_list(text: re.Match[str]) -> str:
    pieces = _BETWEEN.split(text[1])
    return ", ".join(f"\\text{{{piece}}}" for piece in pieces) if all(map(_LETTER.search, pieces)) else text[0]


def same_words(expected: str, given: str) -> bool | None:
    """Whether two words or phrases are the same, upper or lower case; None if one may be mathematics."""
    one, other = _plain(expected), _plain(given)
    if one is None or other is None:
        return None
    if max(len(one), len(other)) <= LONGEST_PRODUCT and "\\text" not in expected + given:
        return None
    return one == other


def _plain(text: str) -> str | None:
    if (found := _WORDS.fullmatch(text.strip())) is None:
        return None
    words = _TEXT.sub(r" \1 ", found[1]).strip()
    return re.sub(r"[^A-Za-z]", "", _ARTICLE.sub("", words, 1)).casefold()


def read_number_words(text: str) -> tuple[Fraction, str] | None:
    """The number in words at the start of `text` with its value, and what follows it; None before another number."""
    total, smallest, end = 0, max(_SCALES.values()) + 1, 0
    while (found := _GROUP.match(text, end)) and (scale := _scale(found)) < smallest:
        total += scale * (100 * _value(found["hundreds"]) + _value(found["rest"]) + _value(found["small"]))
        smallest, end = scale, found.end()
    return (Fraction(total), text[end:]) if end and not found else None


def _scale(found: re.Match[str]) -> int:
    return _SCALES[found["scale"].lower()] if found["scale"] else 1


def _value(words: str | None) -> int:
    return sum(_VALUES[word] for word in re.findall("[a-z]+", (words or "").lower()))
