"""The settings of multi-domain on-policy distillation."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from cascade_rl.engine.core.rollouts import Sampling
from cascade_rl.engine.core.settings import OptimizerConfig
from cascade_rl.rl_stages.config.node import at_least, require
from cascade_rl.rl_stages.config.stage import OnPolicyStage

MOPD_OPTIMIZER = OptimizerConfig(lr=2e-6, warmup_steps=30, warmup_init_lr=2e-7, betas=(0.9, 0.95))


MOPD_SAMPLING = Sampling(max_new_tokens=98_304, temperature=1.0, top_p=1.0)


@dataclass(frozen=True, kw_only=True)
class MopdStage(OnPolicyStage):
    """Multi-domain on-policy distillation: the student's samples, scored by the teacher of their domain. Defaults:
    Cascade 2, section 4.4 and Table 8 (facts/paper.md 2); of its two learning rates, the one that has a warm-up.

    teachers   domain -> name of an earlier stage, whose export it is; "best", the earlier stage with the best held-out
               score there; or a Hugging Face folder, written with a "/". One for each domain of the data; same
               architecture and tokenizer as the student
    importance_low, importance_high   tokens outside are dropped, of the objective "sampled"
    objective  what is learned of the teacher: "sampled", the paper's, its log-prob of the drawn token; "topk", reverse
               KL of its `topk` likeliest tokens and a bucket for the rest; "exact", of the whole vocabulary
    """

    kind: ClassVar[str] = "mopd"

    teachers: Mapping[str, str]
    objective: Literal["sampled", "topk", "exact"] = "sampled"
    topk: int = 64
    rollouts_per_prompt: int = 4
    sampling: Sampling = MOPD_SAMPLING
    optimizer: OptimizerConfig = MOPD_OPTIMIZER

    @property
    def trained_domains(self) -> Collection[str]:
        return self.teachers

    @property
    def models_read(self) -> Mapping[str, str]:
        return {f"teachers.{domain}": teacher for domain, teacher in self.teachers.items()}

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, self.name, self, "topk")
        # a teacher's log-probs over what the student kept would be blind to what it would have said instead
        top_k = self.sampling.top_k
        require(top_k == 0, f"{self.name}.sampling.top_k", "0: distillation is over the whole vocabulary", top_k)
        require(len(self.teachers) > 0, f"{self.name}.teachers", "at least one teacher", dict(self.teachers))
