"""Checkers: compare what a program printed, or a function returned, with the accepted outputs.

They run outside the sandbox, so that the program can never read an expected output. The program chooses what they
read, so nothing here takes more than linear time, or recurses deeper than the expected value.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import repeat
from typing import Any

from cascade_rl.engine.core.errors import UserError

TOLERANCE = 1e-6  # of floats, relative and absolute
CALL_TOLERANCE = 1e-5  # LeetCode's, and of NeMo-Gym's comparison of returned floats (numpy.allclose)

_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,4})?", re.ASCII)
_DIGITS_OF_INT = 4000  # the time that `int` takes grows faster than the text

Rule = Callable[[str, str, float], bool]


def same_text(given: str, expected: str, tolerance: float) -> bool:
    """Equal up to white space at the ends of lines and of the text."""
    return _lines(given) == _lines(expected)


def same_tokens(given: str, expected: str, tolerance: float) -> bool:
    """Equal words: lines and spaces do not count."""
    return given.split() == expected.split()


def same_floats(given: str, expected: str, tolerance: float) -> bool:
    """Equal words, or numbers within the tolerance; two integers are the same only when equal."""
    words, wanted = given.split(), expected.split()
    return len(words) == len(wanted) and all(map(_same_word, words, wanted, repeat(tolerance)))


def same_lines(given: str, expected: str, tolerance: float) -> bool:
    """The rule of LiveCodeBench and of NeMo-Gym's `code_gen` (testing_util.py): as many lines, each of the same text or
    of the same numbers. Ours differs in one thing: 7 is not 007, which may be a text of digits."""
    lines, wanted = (text.strip().split("\n") for text in (given, expected))
    return len(lines) == len(wanted) and all(map(_same_line, lines, wanted, repeat(tolerance)))


def same_lines_in_any_order(given: str, expected: str, tolerance: float) -> bool:
    """The same lines of words, each equally often; blank lines do not count."""
    return _line_counts(given) == _line_counts(expected)


def same_json(given: str, expected: str, tolerance: float) -> bool:
    """Equal JSON values, floats within the tolerance. True is 1, as in Python."""
    value = _value(given)
    return value is not _NO_VALUE and _same_value(value, parsed(expected), tolerance)


def same_list_in_any_order(given: str, expected: str, tolerance: float) -> bool:
    """JSON lists with the same items, each equally often; no tolerance."""
    value, wanted = _value(given), parsed(expected)
    if not isinstance(value, list) or not isinstance(wanted, list):
        return False
    try:
        return Counter(map(_canonical, value)) == Counter(map(_canonical, wanted))
    except RecursionError:  # writing recurses one level deeper than reading
        return False


STDIN_RULES: Mapping[str, Rule] = {
    "exact": same_text,
    "lines": same_lines,
    "tokens": same_tokens,
    "floats": same_floats,
    "unordered": same_lines_in_any_order,
}
CALL_RULES: Mapping[str, Rule] = {"json": same_json, "unordered": same_list_in_any_order}


@dataclass(frozen=True)
class Checker:
    """A rule of STDIN_RULES or CALL_RULES, with its tolerance."""

    rule: Rule
    tolerance: float = TOLERANCE

    def accepts(self, given: bytes, accepted: Sequence[str]) -> bool:
        """Whether the output is one of `accepted`. Bytes that are not UTF-8 are never equal to text."""
        text = given.decode(errors="replace")
        return any(self.rule(text, expected, self.tolerance) for expected in accepted)


def parse_checker(value: Any, rules: Mapping[str, Rule], standard: Checker) -> Checker:
    """A row's `checker`: {"kind": one of `rules`, "tolerance": number}, both optional. UserError otherwise."""
    fields = {} if value is None else value
    if not isinstance(fields, dict) or not fields.keys() <= {"kind", "tolerance"}:
        raise UserError(f'expected \'checker\' to be {{"kind": text, "tolerance": number}}; found {value!r}')
    kind, tolerance = fields.get("kind"), fields.get("tolerance", standard.tolerance)
    if kind is not None and (not isinstance(kind, str) or kind not in rules):
        raise UserError(f"expected the checker's 'kind' to be one of {', '.join(rules)}; found {kind!r}")
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not 0 <= tolerance < 1:
        raise UserError(f"expected the checker's 'tolerance' to be in [0, 1); found {tolerance!r}")
    return Checker(rules[kind] if kind else standard.rule, tolerance)


def parsed(text: str) -> Any:
    """The JSON value of `text`. An integer of many digits is a Decimal. Raises ValueError, RecursionError."""
    return json.loads(text, parse_int=_whole)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _line_counts(text: str) -> Counter[tuple[str, ...]]:
    return Counter(tuple(line.split()) for line in text.split("\n") if line.strip())


def _same_line(given: str, expected: str, tolerance: float) -> bool:
    if given.strip() == expected.strip():
        return True
    words, wanted = given.split(), expected.split()
    return len(words) == len(wanted) and all(map(_same_number, words, wanted, repeat(tolerance)))


def _same_word(given: str, expected: str, tolerance: float) -> bool:
    return given == expected or _same_number(given, expected, tolerance)


def _same_number(given: str, expected: str, tolerance: float) -> bool:
    """Whether both are decimal numbers, and close; two integers must be equal."""
    if _INTEGER.fullmatch(given) and _INTEGER.fullmatch(expected):
        return _positive_zero(given) == _positive_zero(expected)
    if not (_NUMBER.fullmatch(given) and _NUMBER.fullmatch(expected)):
        return False
    number, wanted = Decimal(given), Decimal(expected)
    return abs(number - wanted) <= Decimal(str(tolerance)) * max(Decimal(1), abs(wanted))


def _positive_zero(integer: str) -> str:
    return "0" if integer == "-0" else integer.removeprefix("+")


def _close(given: float, expected: float, tolerance: float) -> bool:
    """False for an infinity, which `math.isclose` calls close to itself."""
    return math.isfinite(given) and math.isclose(given, expected, rel_tol=tolerance, abs_tol=tolerance)


_NO_VALUE = object()


def _value(text: str) -> Any:
    """The JSON value, or a marker for text that is not JSON or nests too deeply."""
    try:
        return parsed(text)
    except (ValueError, RecursionError):
        return _NO_VALUE


def _whole(digits: str) -> int | Decimal:
    return int(digits) if len(digits) <= _DIGITS_OF_INT else Decimal(digits)


def _same_value(given: Any, expected: Any, tolerance: float) -> bool:
    if isinstance(given, int | Decimal) and isinstance(expected, int | Decimal):
        return given == expected
    if isinstance(given, float) and isinstance(expected, float) and not math.isfinite(expected):
        return repr(given) == repr(expected)
    if isinstance(given, int | float | Decimal) and isinstance(expected, int | float | Decimal):
        return _close(_as_float(given), _as_float(expected), tolerance)
    if type(given) is not type(expected):
        return False
    if isinstance(expected, dict):
        return given.keys() == expected.keys() and all(
            _same_value(given[key], value, tolerance) for key, value in expected.items()
        )
    if isinstance(expected, list):
        return len(given) == len(expected) and all(map(_same_value, given, expected, repeat(tolerance)))
    return bool(given == expected)


def _as_float(number: float | Decimal) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
