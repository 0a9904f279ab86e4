"""The cascade as data: a tree of frozen dataclasses that a launcher file fills in.

Guarantees: an unknown key is a UserError that names the nearest known one, here as in an override or a YAML
file (`rl_stages/config_text.py`); values that cannot work together are refused when the tree is built, before
anything is written. Defaults are Nemotron-Cascade 2's numbers (facts/paper.md); what no paper states has no
default, or says where its value comes from. Torch-free.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any, ClassVar, Literal, Self

from cascade_rl.engine.config import DEFAULT_ROUTER, OptimizerConfig, ParallelConfig, RolloutConfig, RouterConfig
from cascade_rl.engine.errors import UserError
from cascade_rl.engine.sample import Sampling

NAME = re.compile(r"[a-z][a-z0-9_]*")
SFT_OPTIMIZER = OptimizerConfig(
    lr=5e-5, min_lr=5e-6, schedule="cosine", warmup_steps=200, betas=(0.9, 0.98), weight_decay=0.1
)
RL_OPTIMIZER = OptimizerConfig(lr=3e-6, betas=(0.9, 0.95))
RL_SAMPLING = Sampling(max_new_tokens=49_152, temperature=1.0, top_p=1.0)
MOPD_OPTIMIZER = OptimizerConfig(lr=2e-6, warmup_steps=30, warmup_init_lr=2e-7, betas=(0.9, 0.95))
MOPD_SAMPLING = Sampling(max_new_tokens=98_304, temperature=1.0, top_p=1.0)


def nearest(key: str, known: Collection[str]) -> str:
    """The known key that `key` was probably meant to be; one with the same last part goes first."""
    same_end = [name for name in known if name.split(".")[-1] == key.split(".")[-1]]
    return get_close_matches(key, same_end or list(known), n=1, cutoff=0.0)[0]


class Node:
    """A node of the tree: refuses an unknown key with the nearest known one."""

    def __new__(cls, *_values: Any, **keys: Any) -> Self:
        known = [item.name for item in fields(cls)]  # type: ignore[arg-type]
        for key in keys:
            if key not in known:
                raise UserError(f"{cls.__name__} has no key '{key}'. Did you mean '{nearest(key, known)}'?")
        return super().__new__(cls)


def _require(holds: bool, owner: str, expected: str, found: object) -> None:
    if not holds:
        raise UserError(f"{owner}: expected {expected}, found {found!r}.")


def _check_name(owner: str, name: str) -> None:
    _require(NAME.fullmatch(name) is not None, owner, "lower case letters, digits and _", name)


def _at_least(minimum: int, owner: str, node: object, *names: str) -> None:
    for name in names:
        value = getattr(node, name)
        _require(value >= minimum, f"{owner}.{name}", f"at least {minimum}", value)


@dataclass(frozen=True, kw_only=True)
class BaseModel(Node):
    """What the first stage starts from: exactly one of

    hf         folder of a Hugging Face checkpoint (config.json, safetensors, tokenizer)
    hf_config  content of a config.json: a random model of that shape is made on the spot
    """

    hf: str | None = None
    hf_config: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("hf", "hf_config") if getattr(self, name) is not None]
        _require(len(given) == 1, "base", "exactly one of hf and hf_config", " and ".join(given) or "neither")


@dataclass(frozen=True, kw_only=True)
class Evaluation(Node):
    """Held-out scores of all domains, taken before and after each stage. Temperature 0 is greedy."""

    domains: tuple[str, ...]
    prompts_per_domain: int
    max_new_tokens: int
    temperature: float = 1.0

    def __post_init__(self) -> None:
        _at_least(1, "evaluation", self, "prompts_per_domain", "max_new_tokens")
        _require(len(self.domains) > 0, "evaluation.domains", "at least one domain", self.domains)
        _require(self.temperature >= 0, "evaluation.temperature", "0 or more", self.temperature)


@dataclass(frozen=True, kw_only=True)
class Stage(Node):
    """What every stage has.

    data          sources, joined: a .jsonl path, or `generate:<domain>` (see rl_stages/task.py)
    token_budget  tokens per packed micro-batch; the longest sequence must fit
    router        what trains in the routers of a mixture of experts
    checkpoint_every, keep_checkpoints   steps between checkpoints, and how many complete ones stay on disk
    """

    kind: ClassVar[str]

    name: str
    domain: str
    data: tuple[str, ...]
    steps: int
    token_budget: int
    optimizer: OptimizerConfig
    router: RouterConfig = DEFAULT_ROUTER
    checkpoint_every: int = 1
    keep_checkpoints: int = 2

    @property
    def batch_terms(self) -> str:
        """What a step and the whole stage take, with units."""
        raise NotImplementedError

    def __post_init__(self) -> None:
        _check_name("stage name", self.name)
        _at_least(1, self.name, self, "steps", "token_budget", "checkpoint_every", "keep_checkpoints")
        _require(len(self.data) > 0, f"{self.name}.data", "at least one source", self.data)


@dataclass(frozen=True, kw_only=True)
class SftStage(Stage):
    """Supervised fine-tuning. Defaults: Cascade 2, Table 7 (facts/paper.md 3.1); the clip is not stated."""

    kind: ClassVar[str] = "sft"

    sequences_per_step: int = 64
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
        _at_least(1, self.name, self, "sequences_per_step")


@dataclass(frozen=True, kw_only=True)
class OnPolicyStage(Stage):
    """What the stages have in common that learn from their own samples: one update per rollout batch.

    importance_low, importance_high   the band of the train/rollout ratio, see the stage's loss
    tme_bound                         largest allowed mean of exp|log p_train - log p_rollout|; 1.001 suits float32
    """

    prompts_per_step: int = 128
    rollouts_per_prompt: int
    sampling: Sampling
    importance_low: float = 0.5
    importance_high: float = 2.0
    tme_bound: float = 1.001

    @property
    def batch_terms(self) -> str:
        prompts, rollouts = self.prompts_per_step, self.rollouts_per_prompt
        samples = prompts * rollouts
        return (
            f"{self.steps} steps of {prompts:,} prompts x {rollouts} rollouts = {samples:,} samples a step, "
            f"{self.steps * samples:,} in all; at most {self.sampling.max_new_tokens:,} new tokens a sample; "
            f"micro-batches of {self.token_budget:,} tokens"
        )

    @property
    def trained_domains(self) -> Collection[str]:
        """The domains whose held-out scores the stage means to raise."""
        raise NotImplementedError

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least(1, self.name, self, "prompts_per_step", "rollouts_per_prompt")
        _at_least(1, f"{self.name}.sampling", self.sampling, "max_new_tokens")
        heat, top_p = self.sampling.temperature, self.sampling.top_p
        _require(heat > 0, f"{self.name}.sampling.temperature", "more than 0", heat)
        # the sampler's log-probs are renormalised over the kept set; the trainer's are over the whole vocabulary
        _require(top_p == 1, f"{self.name}.sampling.top_p", "1 (a kept set is not replayed in training yet)", top_p)
        low, high = self.importance_low, self.importance_high
        _require(0 <= low <= 1, f"{self.name}.importance_low", "a value in [0, 1]", low)
        _require(high >= 1, f"{self.name}.importance_high", "1 or more", high)
        _require(self.tme_bound >= 1, f"{self.name}.tme_bound", "1 or more", self.tme_bound)


@dataclass(frozen=True, kw_only=True)
class GrpoStage(OnPolicyStage):
    """On-policy RL with verified rewards. Defaults: IF-RL of Cascade 2, Table 8 (facts/paper.md 1.2).

    importance        weight of the train/rollout gap: "truncated" (clamped at importance_high), "masked"
                      (tokens outside [importance_low, importance_high] dropped), "off". Not in the paper
    kl_coefficient    KL to the stage's first weights; 0 but for RLHF (0.03)
    overlong          a truncated sample has reward 0 ("penalty") or leaves the loss ("filter")
    """

    kind: ClassVar[str] = "grpo"

    rollouts_per_prompt: int = 16
    sampling: Sampling = RL_SAMPLING
    optimizer: OptimizerConfig = RL_OPTIMIZER
    importance: Literal["truncated", "masked", "off"] = "truncated"
    kl_coefficient: float = 0.0
    overlong: Literal["penalty", "filter"] = "penalty"

    @property
    def trained_domains(self) -> Collection[str]:
        return (self.domain,)

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least(2, self.name, self, "rollouts_per_prompt")  # a group of one has no advantage
        _require(self.kl_coefficient >= 0, f"{self.name}.kl_coefficient", "0 or more", self.kl_coefficient)


@dataclass(frozen=True, kw_only=True)
class MopdStage(OnPolicyStage):
    """Multi-domain on-policy distillation: the student's samples, scored by the teacher of their domain. Defaults:
    Cascade 2, section 4.4 and Table 8 (facts/paper.md 2); of its two learning rates, the one that has a warm-up.

    teachers   domain -> name of an earlier stage, whose export it is, or a Hugging Face folder, written with a "/".
               One for each domain of the data; same architecture and tokenizer as the student
    importance_low, importance_high   tokens outside are dropped
    """

    kind: ClassVar[str] = "mopd"

    teachers: Mapping[str, str]
    rollouts_per_prompt: int = 4
    sampling: Sampling = MOPD_SAMPLING
    optimizer: OptimizerConfig = MOPD_OPTIMIZER

    @property
    def trained_domains(self) -> Collection[str]:
        return self.teachers

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(len(self.teachers) > 0, f"{self.name}.teachers", "at least one teacher", dict(self.teachers))


def is_folder(teacher: str) -> bool:
    """Whether a teacher is a Hugging Face folder, and not the name of a stage."""
    return "/" in teacher


STAGE_KINDS: dict[str, type[Stage]] = {stage.kind: stage for stage in (SftStage, GrpoStage, MopdStage)}


@dataclass(frozen=True, kw_only=True)
class Cascade(Node):
    """The whole run: stages in order, each starting from the weights of the one before.

    nproc  training ranks; data parallelism is what `parallel` leaves of them
    """

    name: str
    base: BaseModel
    stages: tuple[Stage, ...]
    evaluation: Evaluation
    seed: int = 1
    nproc: int = 1
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)

    def __post_init__(self) -> None:
        _check_name("name", self.name)
        _at_least(0, "cascade", self, "seed")
        _at_least(1, "cascade", self, "nproc")
        self._check_stage_names()
        self._check_layout()
        self._check_lengths()
        self._check_domains()
        self._check_teachers()

    def stage(self, name: str) -> Stage:
        """The stage of that name. Raises UserError that names the nearest one."""
        names = [stage.name for stage in self.stages]
        if name not in names:
            raise UserError(f"{self.name} has no stage '{name}'. Did you mean '{nearest(name, names)}'?")
        return self.stages[names.index(name)]

    def _check_stage_names(self) -> None:
        names = [stage.name for stage in self.stages]
        _require(len(names) > 0, "stages", "at least one stage", self.stages)
        _require(len(set(names)) == len(names), "stages", "different names", names)
        taken = {item.name for item in fields(self)} & set(names)
        _require(not taken, "stages", "names that are no key of the cascade itself", sorted(taken))

    def _check_layout(self) -> None:
        cut = self.parallel
        dense = cut.tensor * cut.pipeline * cut.context
        _require(
            self.nproc % dense == 0,
            "nproc",
            f"a multiple of {dense} (parallel.tensor {cut.tensor} x pipeline {cut.pipeline} x context {cut.context})",
            self.nproc,
        )
        experts = cut.expert * cut.expert_tensor * cut.pipeline
        _require(
            self.nproc % experts == 0,
            "nproc",
            f"a multiple of {experts} (parallel.expert {cut.expert} x expert_tensor {cut.expert_tensor} "
            f"x pipeline {cut.pipeline})",
            self.nproc,
        )

    def _check_lengths(self) -> None:
        limit = self.rollout.max_model_len
        expected = f"less than rollout.max_model_len = {limit}, which prompt and answer share"
        wanted = {"evaluation.max_new_tokens": self.evaluation.max_new_tokens}
        for stage in self.stages:
            if isinstance(stage, OnPolicyStage):
                wanted[f"{stage.name}.sampling.max_new_tokens"] = stage.sampling.max_new_tokens
        for key, tokens in wanted.items():
            _require(tokens < limit, key, expected, tokens)

    def _check_domains(self) -> None:
        measured = self.evaluation.domains
        expected = f"one of evaluation.domains ({', '.join(measured)})"
        for stage in self.stages:
            key = "teachers" if isinstance(stage, MopdStage) else "domain"
            for domain in stage.trained_domains if isinstance(stage, OnPolicyStage) else ():
                _require(domain in measured, f"{stage.name}.{key}", expected, domain)

    def _check_teachers(self) -> None:
        names = [stage.name for stage in self.stages]
        for position, stage in enumerate(self.stages):
            for domain, teacher in stage.teachers.items() if isinstance(stage, MopdStage) else ():
                earlier = ", ".join(names[:position]) or "none there is"
                expected = f'the name of an earlier stage ({earlier}) or a Hugging Face folder, written with a "/"'
                known = is_folder(teacher) or teacher in names[:position]
                _require(known, f"{stage.name}.teachers.{domain}", expected, teacher)
