"""How many tokens a prompt may have, and how many are left to its answer: one rule for stages, evaluation and judges.

    answer <= min(max_new_tokens, total - prompt)     every request is capped to what its prompt leaves
    prompt <= total - min_answer_tokens               a longer prompt is overlong: dropped and counted, or an error

`total` is the engines' max_model_len, or the sampling's max_total_tokens where that is less. In an episode, the
environment's replies count too. The evaluation has the smallest total of all stages, so that each of them scores the
same prompts with the same limits.
"""

from dataclasses import dataclass
from typing import Literal

from cascade_rl.engine.core.rollouts import Sampling
from cascade_rl.engine.core.settings import RolloutConfig

Overlong = Literal["drop", "error"]


@dataclass(frozen=True)
class Room:
    """The tokens that a prompt and its answer share.

    owner    name of the stage, or "evaluation"
    overlong what becomes of a prompt that leaves less than `min_answer_tokens`
    """

    owner: str
    total: int
    min_answer_tokens: int
    overlong: Overlong = "drop"

    @property
    def longest_prompt(self) -> int:
        """The most tokens that a prompt may have."""
        return self.total - self.min_answer_tokens


def total_tokens(sampling: Sampling, rollout: RolloutConfig) -> int:
    """The most tokens of a prompt with everything that follows it."""
    return min(sampling.max_total_tokens or rollout.max_model_len, rollout.max_model_len)
