"""The settings of multi-domain on-policy distillation."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from cascade_rl.engine.core.rollouts import Sampling
from cascade_rl.engine.core.settings import OptimizerConfig
from cascade_rl.rl_stages.config.node import at_least, require
from cascade_rl.rl_stages.config.stage import OnPolicyStage

MOPD_OPTIMIZER = OptimizerConfig(lr=2e-6, warmup_steps=30, warmup_init_lr=2e-7, betas=(0.9, 0.95))


MOPD_SAMPLING = Sampling(max_new_tokens=98_304, temperature=1.0, top_p=1.0)

Divergence = Literal["reverse", "forward", "jsd"]
DIVERGENCES = {"sampled": ("reverse",), "topk": ("reverse", "forward"), "exact": get_args(Divergence)}


@dataclass(frozen=True, kw_only=True)
class MopdStage(OnPolicyStage):
    """Multi-domain on-policy distillation: the teacher of a sample's domain scores the student's tokens.

    Defaults: arXiv 2603.19220, section 4.4 and Table 8. The text and the table give different learning rates. The
    default is that of the text, which comes with a warm-up.

    teachers   domain -> one of: the name of an earlier stage, whose export is the teacher; "best", the earlier stage
               with the best held-out score in that domain; a Hugging Face folder, written with a "/", of any model
               with the student's tokenizer (docs/distillation.md). Each domain of the data needs one
    importance_low, importance_high   for objective "sampled": tokens with a ratio outside this range are dropped
    objective  "sampled": the teacher's log-prob of the sampled token, as in the paper (equations 2 to 4). "topk": the
               divergence over the teacher's `topk` likeliest tokens, with one bucket for all others. "exact": the
               divergence over the whole vocabulary
    topk       for objective "topk": how many of the teacher's likeliest tokens are compared
    divergence  "reverse": KL(student || teacher), as in the paper. "forward": KL(teacher || student), for "topk" and
               "exact". "jsd": Jensen-Shannon, for "exact"
    """

    kind: ClassVar[str] = "mopd"
    needs_reward: ClassVar[bool] = False

    teachers: Mapping[str, str]
    objective: Literal["sampled", "topk", "exact"] = "sampled"
    divergence: Divergence = "reverse"
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
        require(self.objective in DIVERGENCES, f"{self.name}.objective", "sampled, topk or exact", self.objective)
        known = DIVERGENCES[self.objective]
        expected = f"{' or '.join(known)} with objective={self.objective}"
        require(self.divergence in known, f"{self.name}.divergence", expected, self.divergence)
        # with only the student's kept tokens, a teacher could not favour a token that the student left out
        top_k = self.sampling.top_k
        require(top_k == 0, f"{self.name}.sampling.top_k", "0: distillation is over the whole vocabulary", top_k)
        require(len(self.teachers) > 0, f"{self.name}.teachers", "at least one teacher", dict(self.teachers))
