r"""Numerals: the ways to write a rational number, each with its exact value.

An integer, a decimal, a repeating decimal (`0.\overline{3}`, `0.(3)`, `0.333\ldots`), a ratio, a mixed number, and
scientific notation.
`2^{10}`, `\sqrt{4}` and `2 + 3` have rational values but are no numerals.
"""

import re
from fractions import Fraction

MAX_EXPONENT = 9_999

_INTEGER = re.compile(r"[+-]?\d{1,30}")
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+")
_DECIMAL = re.compile(r"[+-]?\d{0,18}\.\d{1,18}")
_RATIO = re.compile(r"([+-]?)(\d{1,18})/(\d{1,18})")
_LATEX_RATIO = re.compile(r"([+-]?)\\[dt]?frac\{(\d{1,18})\}\{(\d{1,18})\}")
_SHORT_RATIO = re.compile(r"([+-]?)\\[dt]?frac(\d)(\d)")
_MIXED = re.compile(r"([+-]?)(\d{1,9}) +(\d{1,9})/(\d{1,9})")

_PLAIN = r"(?:[1-9]\d{0,2}(?:[ ,]\d{3})+(?!\d)(?:\.\d+)?|\d+\.?\d*|\.\d+)"
_PART = rf"(?:-?{_PLAIN}|\{{\s*-?{_PLAIN}\s*\}})"
_NUMERAL = re.compile(
    rf"(?P<sign>[+-]?)\s*(?:"
    rf"(?P<ten>10\s*\^\s*(?P<power>\{{\s*[+-]?\d+\s*\}}|\d))"
    rf"|(?P<start>\d*\.\d*)(?:\\(?:overline|bar|dot)\s*\{{?(?P<marked>\d+)\}}?|\((?P<bracketed>\d+)\))"
    rf"|(?P<begin>\d*\.\d*?)(?:(?P<digit>\d)(?P=digit){{2,}}|(?P<digits>\d{{2,6}}?)(?P=digits)+)\s*\\ldots"
    rf"|(?P<whole>\d+ +|\d+(?=\s*\\frac))?\s*(?:\\frac\s*(?P<over>\d|{_PART})\s*(?P<under>\d|{_PART})"
    rf"|(?P<top>{_PART})\s*(?:/|:(?!\d\d))\s*(?P<bottom>{_PART}))"
    rf"|(?P<plain>{_PLAIN})(?:\s*(?:\\times|\\cdot|\*|x)\s*10\s*\^\s*(?P<exponent>\{{\s*[+-]?\d+\s*\}}|\d)|[eE](?P<e>[+-]?\d+))?"
    rf")"
)
_THOUSANDS_PART = re.compile(r"(?<![\d.,])[1-9]\d{0,2}([ ,'])\d{3}(?:\1\d{3})*(?!\d|,\d|/| \d)")
_DECIMAL_COMMA = re.compile(r"[+-]?(?:0|[1-9]\d*|[1-9]\d{0,2}(?:\.\d{3})+),\d+")
_DECIMAL_PART = re.compile(r"(?<![\d.])(\d*)\.(\d+)(?!\d*\\(?:overline|bar|dot))")


def as_fraction(text: str) -> Fraction | None:
    """The exact value of a plain number, a ratio or a mixed number; None for anything else. Takes microseconds."""
    plain = text.strip().strip("$").replace("{,}", ",").replace("\\!", "").strip()
    if match := _MIXED.fullmatch(plain):
        sign, whole, numerator, denominator = match.groups()
        return _ratio(sign, int(whole), int(numerator), int(denominator))
    if match := _RATIO.fullmatch(plain) or _LATEX_RATIO.fullmatch(plain) or _SHORT_RATIO.fullmatch(plain):
        sign, numerator, denominator = match.groups()
        return _ratio(sign, 0, int(numerator), int(denominator))
    if _THOUSANDS.fullmatch(plain):
        return Fraction(plain.replace(",", ""))
    return Fraction(plain) if _INTEGER.fullmatch(plain) or _DECIMAL.fullmatch(plain) else None


def read_numeral(text: str) -> tuple[Fraction, str] | None:
    """The numeral at the start of `text` with its value, and what follows it."""
    found = _NUMERAL.match(text)
    value = found and _value(found.groupdict())
    return None if found is None or value is None else (value, text[found.end() :])


def _value(parts: dict[str, str | None]) -> Fraction | None:
    sign = -1 if parts["sign"] == "-" else 1
    if power := parts["ten"] and parts["power"]:
        return _scaled(Fraction(sign), power)
    if repeated := parts["marked"] or parts["bracketed"] or parts["digit"] or parts["digits"]:
        start = parts["start"] or parts["begin"] or ""
        places = len(start.partition(".")[2])
        return sign * (_decimal(start) + Fraction(int(repeated), (10 ** len(repeated) - 1) * 10**places))
    if plain := parts["plain"]:
        return _scaled(sign * _decimal(plain), parts["exponent"] or parts["e"] or "0")
    over, under = _decimal(parts["over"] or parts["top"]), _decimal(parts["under"] or parts["bottom"])
    return None if under == 0 else sign * (_decimal(parts["whole"] or "0") + over / under)


def _decimal(text: str | None) -> Fraction:
    """The value of a number without sign words, maybe in braces and with thousands."""
    plain = re.sub(r"[{} ,]", "", text or "0")
    return Fraction(plain if plain.strip("-.") else "0")


def _scaled(value: Fraction, exponent: str) -> Fraction | None:
    power = int(exponent.strip("{} "))
    return value * Fraction(10) ** power if abs(power) <= MAX_EXPONENT else None


def _ratio(sign: str, whole: int, numerator: int, denominator: int) -> Fraction | None:
    return None if denominator == 0 else int(f"{sign}1") * (whole + Fraction(numerator, denominator))


def without_thousands(text: str) -> str:
    r"""`1,234.5` as 1234.5 and `2 000\sqrt{3}` as 2000\sqrt{3}; not in brackets, where a comma separates."""
    return _THOUSANDS_PART.sub(lambda found: _joined(text, found), text)


def _joined(text: str, found: re.Match[str]) -> str:
    before = text[: found.start()]
    inside = any(before.count(opening) > before.count(closing) for opening, closing in (("(", ")"), ("[", "]")))
    return found[0] if inside or before.count("\\{") > before.count("\\}") else found[0].replace(found[1], "")


def with_decimal_point(text: str) -> str:
    """`2,74` as 2.74 and `1.234,5` as 1234.5. A comma may also separate, so this is one of two readings."""
    return text.replace(".", "").replace(",", ".") if _DECIMAL_COMMA.fullmatch(text.strip()) else text


def same_decimal(expected: str, given: str) -> bool:
    """Whether `expected` has a decimal comma (`2,74`), which separates no thousands, and `given` is the same number."""
    decimal = with_decimal_point(expected)
    return decimal != expected and as_fraction(expected) is None and as_fraction(decimal) == as_fraction(given)


def without_decimals(text: str) -> str:
    r"""`0.25x` as \frac{25}{100}x, since floats would make different numbers equal."""
    return _DECIMAL_PART.sub(lambda found: f"\\frac{{{int(found[1] + found[2])}}}{{{10 ** len(found[2])}}}", text)
