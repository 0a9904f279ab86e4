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

    owner    name of the stage, "evaluation" or "reward_model"
    overlong what becomes of a prompt that leaves less than `min_answer_tokens`
    key      the owner's name for those
    """

    owner: str
    total: int
    min_answer_tokens: int
    overlong: Overlong = "drop"
    key: str = "min_answer_tokens"

    @property
    def longest_prompt(self) -> int:
        """The most tokens that a prompt may have."""
        return self.total - self.min_answer_tokens

    def refusal(self, tokens: int) -> str:
        """What was expected of a prompt of so many tokens, what was found, and what to change."""
        return (
            f"expected a prompt of at most {self.longest_prompt:,} tokens, which leaves {self.min_answer_tokens:,} of "
            f"{self.total:,} to its answer; found {tokens:,}. Shorten it, or change rollout.max_model_len or "
            f"{self.owner}.{self.key}"
        )


def total_tokens(sampling: Sampling, rollout: RolloutConfig) -> int:
    """The most tokens of a prompt with everything that follows it."""
    return min(sampling.max_total_tokens or rollout.max_model_len, rollout.max_model_len)
