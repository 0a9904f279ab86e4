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
from typing import Any

from cascade_rl.engine.core.errors import UserError

TOLERANCE = 1e-6  # of floats, relative and absolute

_INTEGER = re.compile(r"[+-]?\d+")
_NUMBER = re.compile(r"[+-]?(\d{1,400}\.?\d{0,400}|\.\d{1,400})([eE][+-]?\d{1,4})?")
_WITH_POINT = re.compile(r"(?<!\S)[+-]?\d+\.\d+([eE][+-]?\d+)?(?!\S)")

Rule = Callable[[str, str, float], bool]


def same_text(given: str, expected: str, tolerance: float) -> bool:
    """Equal up to white space at the ends of lines and of the text."""
    return _lines(given) == _lines(expected)


def same_tokens(given: str, expected: str, tolerance: float) -> bool:
    """Equal words: lines and spaces do not count."""
    return given.split() == expected.split()


def same_floats(given: str, expected: str, tolerance: float) -> bool:
    """Equal words, or finite numbers within the tolerance; two integers are the same only when equal."""
    words, wanted = given.split(), expected.split()
    return len(words) == len(wanted) and all(map(_same_word, words, wanted, [tolerance] * len(words)))


def same_lines_in_any_order(given: str, expected: str, tolerance: float) -> bool:
    """The same lines of words, each equally often; blank lines do not count."""
    return _line_counts(given) == _line_counts(expected)


def same_json(given: str, expected: str, tolerance: float) -> bool:
    """Equal JSON values, floats within the tolerance."""
    value = _value(given)
    return value is not _NO_VALUE and _same_value(value, json.loads(expected), tolerance)


def same_list_in_any_order(given: str, expected: str, tolerance: float) -> bool:
    """JSON lists with the same items, each equally often; no tolerance."""
    value, wanted = _value(given), json.loads(expected)
    if not isinstance(value, list) or not isinstance(wanted, list):
        return False
    try:
        return Counter(map(_canonical, value)) == Counter(map(_canonical, wanted))
    except RecursionError:  # writing recurses one level deeper than reading
        return False


STDIN_RULES: Mapping[str, Rule] = {
    "exact": same_text,
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


def parse_checker(value: Any, rules: Mapping[str, Rule], default: str) -> Checker:
    """A row's `checker`: {"kind": one of `rules`, "tolerance": number}, both optional. UserError otherwise."""
    fields = {} if value is None else value
    if not isinstance(fields, dict) or not fields.keys() <= {"kind", "tolerance"}:
        raise UserError(f'expected \'checker\' to be {{"kind": text, "tolerance": number}}; found {value!r}')
    kind, tolerance = fields.get("kind", default), fields.get("tolerance", TOLERANCE)
    if not isinstance(kind, str) or kind not in rules:
        raise UserError(f"expected the checker's 'kind' to be one of {', '.join(rules)}; found {kind!r}")
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not 0 <= tolerance < 1:
        raise UserError(f"expected the checker's 'tolerance' to be in [0, 1); found {tolerance!r}")
    return Checker(rules[kind], tolerance)


def natural_kind(outputs: Sequence[Sequence[str]]) -> str:
    """`floats` where an expected output has a decimal point, else `tokens`: integers are then exact."""
    return "floats" if any(_WITH_POINT.search(text) for accepted in outputs for text in accepted) else "tokens"


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _line_counts(text: str) -> Counter[tuple[str, ...]]:
    return Counter(tuple(line.split()) for line in text.split("\n") if line.strip())


def _same_word(given: str, expected: str, tolerance: float) -> bool:
    if given == expected:
        return True
    if _INTEGER.fullmatch(given) and _INTEGER.fullmatch(expected):
        return False
    if not (_NUMBER.fullmatch(given) and _NUMBER.fullmatch(expected)):
        return False
    return _close(float(given), float(expected), tolerance)


def _close(given: float, expected: float, tolerance: float) -> bool:
    """False for an infinity, which `math.isclose` calls close to itself."""
    return math.isfinite(given) and math.isclose(given, expected, rel_tol=tolerance, abs_tol=tolerance)


_NO_VALUE = object()


def _value(text: str) -> Any:
    """The JSON value, or a marker for text that is not JSON, nests too deeply or has too many digits."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _NO_VALUE


def _same_value(given: Any, expected: Any, tolerance: float) -> bool:
    if isinstance(expected, bool) or isinstance(given, bool):
        return given is expected
    if isinstance(given, int) and isinstance(expected, int):
        return given == expected
    if isinstance(given, int | float) and isinstance(expected, int | float):
        return _close(_as_float(given), _as_float(expected), tolerance)
    if type(given) is not type(expected):
        return False
    if isinstance(expected, dict):
        return given.keys() == expected.keys() and all(
            _same_value(given[key], value, tolerance) for key, value in expected.items()
        )
    if isinstance(expected, list):
        return len(given) == len(expected) and all(map(_same_value, given, expected, [tolerance] * len(given)))
    return bool(given == expected)


def _as_float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
