"""The settings of supervised fine-tuning."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from cascade_rl.engine.core.settings import OptimizerConfig
from cascade_rl.rl_stages.config.node import at_least, require
from cascade_rl.rl_stages.config.source import parse_sources
from cascade_rl.rl_stages.config.stage import Stage

SFT_OPTIMIZER = OptimizerConfig(
    lr=5e-5, min_lr=5e-6, schedule="cosine", warmup_steps=200, betas=(0.9, 0.98), weight_decay=0.1
)


@dataclass(frozen=True, kw_only=True)
class SftStage(Stage):
    """Supervised fine-tuning. Defaults: arXiv 2603.19220, Table 7. The paper does not state the gradient clip.

    sequences_per_step   demonstrations per step. The paper counts packed sequences of 256K tokens, 64 per step
    learned_turns        which assistant turns of a conversation are learned: "every" or the "last". The paper does not
                         say; NVIDIA-NeMo/Nemotron's SFT recipe for Nano-3 learns every turn
    heldout              demonstrations whose mean loss a token is `validation_loss`, in metrics.jsonl
    validate_every       steps between two of these losses; there is also one before the first step and after the last
    overlong             a sequence longer than token_budget ends the run ("error") or is dropped and counted ("drop")
    """

    kind: ClassVar[str] = "sft"

    sequences_per_step: int = 64
    learned_turns: Literal["every", "last"] = "every"
    validate_every: int = 50
    overlong: Literal["error", "drop"] = "error"
    optimizer: OptimizerConfig = SFT_OPTIMIZER

    @property
    def batch_terms(self) -> str:
        total = self.steps * self.sequences_per_step
        return (
            f"{self.steps} steps of {self.sequences_per_step:,} sequences = {total:,} sequences; "
            f"micro-batches of {self.token_budget:,} tokens"
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, self.name, self, "sequences_per_step", "validate_every")
        endless = any(source.generated for source in parse_sources(self.heldout))
        require(not endless, f"{self.name}.heldout", "rows: generated demonstrations have no end", self.heldout)
