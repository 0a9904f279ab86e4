r"""A number and what stands around it: currency, a multiplier, a per cent sign, a unit, a time of day.

What stands around a number counts. `5 million` is 5,000,000; `5 cm` is not `5 m`, but is `0.05 m`; `9:30 p.m.` is not
`9:30 a.m.`; a number with a base, a modulus or a word that changes it is no number here.

- A unit may be left out, or be added, since the question names it.
- `28%` is 28 where per cent are asked for, and 0.28; `500%` is not 5: an expected integer is no share; `0.5%` is not
  0.5.
- Unknown units (apples, yuan) are not compared.
"""

import re
from dataclasses import dataclass, replace
from fractions import Fraction

from cascade_rl.rl_stages.rewards.verifiers.maths.numerals import read_numeral
from cascade_rl.rl_stages.rewards.verifiers.maths.units import is_unit, measure
from cascade_rl.rl_stages.rewards.verifiers.maths.words import read_number_words

_SCALES = {"hundred": 2, "thousand": 3, "lakh": 5, "million": 6, "crore": 7, "billion": 9, "trillion": 12}
_SCALE = re.compile(rf"\s*({'|'.join(_SCALES)}|dozen)s?\b\s*(?:of\b)?", re.IGNORECASE)
_PERCENT = re.compile(r"\s*(?:\\?%|(?:percent|per cent|percentage|pct)\b)")
_CURRENCY = re.compile(r"\s*(?:(?:US|[ACS]|HK)?\$|(?:USD|EUR|GBP|INR|CNY|JPY)\b|Rs\b\.?)\s*")
_MINUS = re.compile(r"-\s*(?=[$(])|(?:minus|negative)\s+", re.IGNORECASE)
_LEAD = re.compile(
    r"\s*(?:(?:[A-Za-z]+ ){0,6}(?:[A-Za-z]+:|is)\s|(?:the )?(?:final )?answer(?: is)?\b"
    r"|approximately|about|roughly|exactly|only)?\s*",
    re.IGNORECASE,
)
_OVER = re.compile(
    r"(?<=[\d }])\s*\\frac\s*\{\s*([A-Za-z]+)\s*\}\s*\{\s*([A-Za-z]+(?:\s*\^\s*\{?\s*\d\s*\}?)?)\s*\}\s*$"
)
_MICRO = re.compile(r"(?<=[\d }])\\mu(?![A-Za-z])\s*(?=[A-Za-z])")
_BETWEEN_UNITS = re.compile(r"(?<=[A-Za-z])\s*\\cdot\s+(?=[A-Za-z])")
_TIME = re.compile(r"(\d{1,2}):(\d\d)(?::(\d\d))?\s*(?:(a|p)\.?\s*m\.?)?", re.IGNORECASE)
_DEGREE = re.compile(r"^\s*\^\\circ\s*([CF]\b)?")
_ORDINAL = re.compile(r"^\s*\^?\{?\s*(?:st|nd|rd|th)\b\s*\}?")
_UNIT = re.compile(r"[A-Za-z$'. /()*-]*(?:(?:\^\s*(?:\{\s*-?\d\s*\}|-?\d))[A-Za-z$'. /()*-]*)*")
_TEXT_BEHIND = re.compile(r"\\text\s*\{([^{}]*)\}\s*(?:\^\s*\{?\s*\d\s*\}?)?\s*$")
_CHANGES = re.compile(
    r"\b(?:squared|cubed|factorial|mod\w*|base|remainder|less|more|fewer|greater|than|least|most|times|half|halves|thirds?"
    r"|quarters?|tens|ones|(?:four|fif|six|seven|eigh|nin|ten|eleven|twelf|hundred|thousand|million|[a-z]+teen|[a-z]+tie)ths?|plus|minus|over|under|below|above|not|no|never|out|negative|if|when|choose"
    r"|[ap]\.? ?m\.?|BCE?|otherwise|unless|except|maybe|perhaps|possibly)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Quantity:
    """value: 28 for `28%`. unit: the words behind the number, or "$"."""

    value: Fraction
    percent: bool = False
    unit: str = ""


def read_quantity(text: str) -> Quantity | None:
    """The number that `text` says, in the form of `one_notation`; None if it says something else or more."""
    words = _unit_words(re.sub(r"\\text\s*\{([^{}]*)\}", r" \1 ", text)).strip()
    start = _LEAD.match(words).end()  # type: ignore[union-attr]
    if _CHANGES.search(words, 0, start):
        return None
    if minus := _MINUS.match(words, start):
        start = minus.end()
    currency = _CURRENCY.match(words, start)
    rest, sign = words[currency.end() if currency else start :], -1 if minus else 1
    if not currency and (inner := _in_brackets(rest)) is not None:
        found = read_quantity(inner)
        if found is None or (minus and found.value < 0):
            return None
        return replace(found, value=sign * found.value)
    if (numeral := read_numeral(rest) or read_number_words(rest)) is None:
        return None
    return _with_surroundings(sign * numeral[0], numeral[1], "$" if currency else "")


def _unit_words(text: str) -> str:
    r"""Units of mathematical signs in words: `5 \frac{m}{s}` as 5 m/s, `N \cdot m` as N m, `\Omega` as ohm."""
    text = _OVER.sub(r" \1/\2 ", text).replace("\\Omega", " ohm ")
    return _BETWEEN_UNITS.sub(" ", _MICRO.sub(" micro", text))


def _in_brackets(text: str) -> str | None:
    inner = re.fullmatch(r"\(([^(),]*)\)|\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}", text.strip())
    return inner and (inner[1] or inner[2])


def _with_surroundings(value: Fraction, after: str, unit: str) -> Quantity | None:
    while scale := _SCALE.match(after):
        value *= 12 if scale[1].lower() == "dozen" else 10 ** _SCALES[scale[1].lower()]
        after = after[scale.end() :]
    percent = _PERCENT.match(after)
    after = after[percent.end() :] if percent else after
    if not percent:
        after = _ORDINAL.sub("", _DEGREE.sub(r" deg\1 ", after))
    after = after.rstrip(" .")
    return Quantity(value, bool(percent), unit or after.strip()) if _is_unit(after) else None


def _is_unit(text: str) -> bool:
    """Whether `text` can be a unit: words that do not change the number, and no letter that may be a factor."""
    words = re.findall(r"[A-Za-z]+", text)
    if not _UNIT.fullmatch(text) or _CHANGES.search(text) or text.strip()[:1] in ("^", "-", "*", "/", "(", "'"):
        return False
    if not words or text[0] == " ":
        return not words or len(words[0]) > 2 or words[0] in ("sq", "cu", "US") or is_unit(words[0])
    return len(words[0]) > 1 and is_unit(words[0])


def other_unit(expected: str, given: str) -> bool:
    r"""Whether the text behind a closed form (`2\sqrt{3} \text{ cm}`) changes it, or is another unit than expected."""
    one, other = (_TEXT_BEHIND.search(text) for text in (expected, given))
    if other is None:
        return False
    behind = f" {other[1]}"
    if _SCALE.match(behind) or not _is_unit(behind):
        return one is None or one[1].strip() != other[1].strip()
    return one is not None and None is not measure(one[1]) != measure(other[1]) is not None


def same_quantity(expected: Quantity, given: Quantity) -> bool:
    if {expected.unit, given.unit} == {"degC", "degF"}:
        return False
    one, other = (measure(quantity.unit) if quantity.unit else None for quantity in (expected, given))
    if one and other:
        return one[0] == other[0] and expected.value * one[1] == given.value * other[1]
    if expected.value == given.value:
        return expected.percent or not given.percent or not 0 < abs(expected.value) < 1
    share = expected.value.denominator > 1 or expected.percent
    return share and expected.percent != given.percent and _plain(expected) == _plain(given)


def _plain(quantity: Quantity) -> Fraction:
    return quantity.value / 100 if quantity.percent else quantity.value


def same_time(expected: str, given: str) -> bool | None:
    """Whether two times of day are the same, of 24 hours if a.m. or p.m. is expected; None if one is no time."""
    one, other = (
        _TIME.fullmatch(re.sub(r"\\text\s*\{([^{}]*)\}", r" \1 ", text).strip()) for text in (expected, given)
    )
    if one is None or other is None:
        return None
    if one[4] is None:
        return [int(one[1]), one[2], one[3]] == [int(other[1]), other[2], other[3]]
    return (_hour(one), one[2], one[3]) == (_hour(other), other[2], other[3])


def _hour(time: re.Match[str]) -> int:
    hour = int(time[1])
    return hour if time[4] is None else hour % 12 + 12 * (time[4].lower() == "p")
