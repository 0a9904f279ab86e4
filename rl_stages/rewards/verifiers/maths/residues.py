r"""Digits in a base (`101_2`) and residues (`5 \pmod 7`).

math-verify drops the base, and finds residues of different moduli equal.
"""

import re
from fractions import Fraction

from cascade_rl.rl_stages.rewards.verifiers.maths.numerals import as_fraction

_BASE = re.compile(r"\(?\s*([0-9A-Z]+)\s*\)?\s*(?:_|,?\s*\(?\s*(?:in\s+)?base\b)[\s{(]*([^\W_]+)[\s})]*")
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_MODULUS = re.compile(r"\(?\s*\\?(?:\\[pb]?mod|mod)(?![A-Za-z])\s*\{?\s*(\w+)\s*\}?\s*\)?$")
_WORDS = {"two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9"}


def same_in_base(expected: str, given: str) -> bool | None:
    """Whether the digits and the base are those that are expected; None if no base is. The base may be left out."""
    if (gold := _in_base(expected)) is None:
        return None
    if (number := _in_base(given)) is None:
        return "".join(given.split()) == gold[1]
    return number[1] == gold[1] and _base(number) == _base(gold)


def _in_base(text: str) -> re.Match[str] | None:
    return _BASE.fullmatch(_TEXT.sub(r" \1 ", text).strip())


def _base(number: re.Match[str]) -> str:
    return _WORDS.get(number[2].lower(), number[2])


def residue(text: str) -> tuple[str, str | None]:
    r"""What stands before the modulus, with `\equiv` as an equals sign, and the modulus, or None without one."""
    found = _MODULUS.search(text)
    return (text[: found.start()].replace("\\equiv", "=").strip(), found[1]) if found else (text, None)


def same_residue(expected: str, given: str, modulus: str) -> bool | None:
    """Whether two integers are the same modulo `modulus`; None if one of the three is no integer."""
    numbers = [as_fraction(text) for text in (expected, given, modulus)]
    one, other, divisor = (number or Fraction(0) for number in numbers)
    if None in numbers or not all(number.denominator == 1 for number in (one, other, divisor)) or divisor < 1:
        return None
    return (one - other) % divisor == 0
