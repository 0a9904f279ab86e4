"""Equality of two LaTeX expressions by math-verify, with exact constants.

math-verify 0.9.0 alone takes constants for equal whose difference is below 1e-15, and floats that agree in six places.
"""

from functools import cache
from typing import Any

from cascade_rl.rl_stages.rewards.verifiers.maths.numerals import without_decimals
from cascade_rl.rl_stages.rewards.verifiers.maths.quantities import read_quantity

DIGITS = 40
MOST_DIGITS = 5_000


class MathVerify:
    """Imports sympy with the first call; a call may never return."""

    def equal(self, expected: str, given: str) -> bool:
        """Whether math-verify reads both and finds them equal."""
        from math_verify import verify

        gold, answer = _parsed(expected), _parsed(given)
        if not gold or not answer:
            return False
        if (same := same_constant(gold[0], answer[0])) is not None:
            return same
        _make_exact()
        return bool(verify(gold, answer, timeout_seconds=None, allow_set_relation_comp=True))

    def rounds(self, exact: str, decimal: str) -> bool:
        """Whether `exact` is `decimal` when it is rounded to as many places as `decimal` has."""
        value, quantity = _parsed(exact), read_quantity(decimal)
        if not value or quantity is None or not getattr(value[0], "is_number", False):
            return False
        places = len(decimal.partition(".")[2].partition(" ")[0])
        return bool(abs(value[0].evalf(DIGITS) - quantity.value) * 10**places <= 0.5)


def _parsed(text: str) -> list[Any]:
    from math_verify import LatexExtractionConfig, parse

    whole = LatexExtractionConfig(try_extract_without_anchor=False, boxed_match_priority=0)
    read = parse(f"\\boxed{{{without_decimals(text)}}}", [whole], "no_fallback", parsing_timeout=None)
    return [_with_imaginary_unit(reading) for reading in read]


def _with_imaginary_unit(value: Any) -> Any:
    """`value` with sympy's I for a free `i`, so that e^{i\\pi/3} is what it is."""
    from sympy import Expr, FiniteSet, I, MatrixBase

    if not isinstance(value, Expr | FiniteSet | MatrixBase):
        return value
    return value.subs({symbol: I for symbol in value.free_symbols if getattr(symbol, "name", "") == "i"})


def same_constant(one: Any, other: Any) -> bool | None:
    """Whether two constants are equal: exactly if both are rational, otherwise in DIGITS digits before and behind the
    point. None if one is no finite constant, or if both are too small to tell from 0.

    It takes milliseconds where `verify` simplifies for minutes, such as powers of 2016.
    """
    from sympy import Expr

    if not all(isinstance(value, Expr) and value.is_number for value in (one, other)):
        return None
    rationals = [value.doit() for value in (one, other)]
    if all(value.is_Rational for value in rationals):
        return bool(rationals[0] == rationals[1])
    size = max(_magnitude(value) or 0 for value in rationals)
    digits = DIGITS + min(max(size, 0), MOST_DIGITS)
    values = [value.evalf(digits + 5) for value in rationals]
    if not all(value.is_finite for value in values):
        return None
    largest = max(abs(value) for value in values)
    if largest < 10**-DIGITS:
        return None
    return bool(abs(values[0] - values[1]) <= largest / 10**digits)


def _magnitude(value: Any) -> int | None:
    from sympy import log

    rough = abs(value.evalf(5))
    return int(log(rough, 10).evalf(5)) if rough.is_finite and rough > 0 else None


@cache
def _make_exact() -> None:
    """Has math-verify compare constants inside equations, sets and matrices as we do."""
    from math_verify import grader

    symbolic = grader.sympy_symbolic_eq

    def numeric(one: Any, other: Any, *_: Any) -> bool:
        if hasattr(one, "shape") and hasattr(other, "shape"):
            one, other = one.doit(), other.doit()
            return one.shape == other.shape and all(map(numeric, one.flat(), other.flat()))
        return bool(same_constant(one, other))

    def simplified(one: Any, other: Any) -> bool:
        return same_constant(one, other) is None and symbolic(one, other)

    grader.sympy_numeric_eq, grader.sympy_symbolic_eq = numeric, simplified
