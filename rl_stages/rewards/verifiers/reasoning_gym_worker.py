"""The worker process of reasoning-gym."""

import contextlib
import sys
from collections.abc import Mapping
from typing import Any

from cascade_rl.rl_stages.rewards.deadline_worker import Reply, serve

FULLY_RIGHT = 0.99


def partial_score(answer: str, entry: Mapping[str, Any]) -> float:
    import reasoning_gym

    score = reasoning_gym.get_score_answer_fn(entry["metadata"]["source_dataset"])
    with contextlib.redirect_stdout(sys.stderr):  # stdout carries the replies
        return float(score(answer=answer, entry=entry))


def reply(request: Mapping[str, Any]) -> Reply:
    """Score 1 for a fully right answer, else 0, also if the scorer raises, as some do on unexpected text."""
    try:
        partial = partial_score(request["answer"], request["entry"])
    except Exception as error:  # 85 scorers, whose exceptions are not documented
        return {"score": 0.0, "detail": f"reasoning-gym: {type(error).__name__}"}
    return {"score": float(partial >= FULLY_RIGHT), "detail": f"reasoning-gym scores {partial:g}"}


if __name__ == "__main__":
    serve(reply, "reasoning_gym")
