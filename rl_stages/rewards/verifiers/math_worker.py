"""The worker process of math-verify."""

from collections.abc import Mapping
from typing import Any

from cascade_rl.rl_stages.rewards.deadline_worker import Reply, serve

DIGITS = 40


def compare(answer: str, expected: str) -> bool:
    from math_verify import parse, verify

    gold, given = (parse(f"\\boxed{{{text}}}", parsing_timeout=None) for text in (expected, answer))
    if gold and given and same_constant(gold[0], given[0]):
        return True
    return bool(verify(gold, given, timeout_seconds=None))


def same_constant(one: Any, other: Any) -> bool:
    """Whether both are real constants that agree in DIGITS digits. False says nothing about them.

    It takes milliseconds where `verify` simplifies for minutes, such as powers of 2016.
    """
    from sympy import Expr, Number

    if not all(isinstance(value, Expr) and value.is_number for value in (one, other)):
        return False
    values = [value.evalf(DIGITS + 5) for value in (one, other)]
    if not all(isinstance(value, Number) and value.is_finite for value in values):
        return False
    return bool(abs(values[0] - values[1]) <= abs(values[0]) / 10**DIGITS)


def reply(request: Mapping[str, Any]) -> Reply:
    """Score 1 if equal, else 0. An answer that cannot be evaluated is wrong, and the detail says why."""
    answer, expected = request["answer"], request["expected"]
    try:
        return {"score": float(compare(answer, expected)), "detail": f"{answer} against {expected}"}
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        MemoryError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        return {"score": 0.0, "detail": f"math-verify: {type(error).__name__}"}


if __name__ == "__main__":
    serve(reply, "math_verify")
