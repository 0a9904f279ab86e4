"""Verifies the judgements of a generative reward model in training against the expected ones.

The distance is meant to be that of Nemotron 3 Nano's GenRM training (arXiv 2512.20848; its exact form is unverified):
the sum of the errors of both scores and of the ranking. Here it is a share of the largest distance, so that an
unreadable judgement never beats a wrong one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.core.verdict import Verdict
from cascade_rl.rl_stages.rewards.reward_models.genrm import parse_judgement

if TYPE_CHECKING:
    from cascade_rl.rl_stages.core.task import Task

HIGHEST = {"score_1": 5, "score_2": 5, "ranking": 6}
LARGEST_DISTANCE = sum(top - 1 for top in HIGHEST.values())


def parse_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """The expected judgement, checked: `score_1`, `score_2` (1 to 5) and `ranking` (1 to 6), whole numbers."""
    for name, top in HIGHEST.items():
        value = row.get(name)
        if type(value) is not int or not 1 <= value <= top:
            raise UserError(f"expected {name!r} to be a whole number from 1 to {top}; found {value!r}")
    return {name: row[name] for name in HIGHEST}


class JudgementVerifier:
    """Score 1 for the expected judgement, less in proportion to the distance from it."""

    concurrency = 1

    def __call__(self, task: Task, text: str) -> Verdict:
        judgement = parse_judgement(text)
        if judgement is None:
            return Verdict.wrong_format("expected a JSON object with score_1, score_2 and ranking; found none")
        gaps = {name: abs(getattr(judgement, name) - task.metadata[name]) for name in HIGHEST}
        return Verdict.scored(
            1 - sum(gaps.values()) / LARGEST_DISTANCE, {f"{name}_gap": gap for name, gap in gaps.items()}
        )

    def close(self) -> None:
        """Nothing was started."""
