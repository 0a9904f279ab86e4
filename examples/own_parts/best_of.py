"""A kind of stage: best-of-n fine-tuning."""

from dataclasses import dataclass
from typing import ClassVar

from cascade_rl.rl_stages.config.grpo_stage import GrpoStage


@dataclass(frozen=True, kw_only=True)
class BestOfStage(GrpoStage):
    """It has GRPO's keys and one of its own.

    least   smallest reward of an answer that is learned
    """

    kind: ClassVar[str] = "python:best_of:BestOfStage"
    loop: ClassVar[str] = "best_of_loop:run"

    least: float = 0.0
