"""The settings of reward-model training."""

from dataclasses import dataclass
from typing import ClassVar

from cascade_rl.engine.core.settings import OptimizerConfig
from cascade_rl.rl_stages.config.node import at_least, require
from cascade_rl.rl_stages.config.stage import Stage

REWARD_MODEL_OPTIMIZER = OptimizerConfig(lr=2e-6, betas=(0.9, 0.95))


@dataclass(frozen=True, kw_only=True)
class RewardModelStage(Stage):
    """Bradley-Terry training of a reward model with the policy's architecture. No stage starts from its weights.

    Defaults: Cascade 1 (arXiv 2512.13607, section 4): one epoch over 82K pairs is 320 steps. The betas are those of its
    RL stages.

    data    preference pairs (rl_stages/tasks/pairs.py)
    pairs_per_step  pairs in an optimizer step
    domain  name of its score: the share of held-out pairs whose chosen answer has the higher reward
    """

    kind: ClassVar[str] = "reward_model"
    trains_policy: ClassVar[bool] = False

    pairs_per_step: int = 256
    steps: int = 320
    optimizer: OptimizerConfig = REWARD_MODEL_OPTIMIZER

    @property
    def batch_terms(self) -> str:
        total = self.steps * self.pairs_per_step
        return (
            f"{self.steps} steps of {self.pairs_per_step:,} pairs = {total:,} pairs; "
            f"micro-batches of {self.token_budget:,} tokens"
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, self.name, self, "pairs_per_step")
        require(self.lora is None, f"{self.name}.lora", "none: the head of a reward model is trained whole", self.lora)
        require(not self.gate, f"{self.name}.gate", "no gate: a reward model generates no answers", dict(self.gate))
