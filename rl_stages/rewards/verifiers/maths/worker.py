"""The worker process of math-verify: what is no plain number is compared here."""

from collections.abc import Mapping
from typing import Any

from cascade_rl.rl_stages.rewards.deadline_worker import Reply, serve
from cascade_rl.rl_stages.rewards.verifiers.maths.comparison import right
from cascade_rl.rl_stages.rewards.verifiers.maths.symbolic import MathVerify


def reply(request: Mapping[str, Any]) -> Reply:
    """Score 1 if equal, else 0. An answer that cannot be evaluated is wrong, and the detail says why."""
    answer, expected = request["answer"], request["expected"]
    try:
        return {"score": float(right(answer, expected, MathVerify())), "detail": f"{answer} against {expected}"}
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
