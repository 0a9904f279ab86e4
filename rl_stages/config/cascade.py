"""The cascade as data: a tree of frozen dataclasses that a launcher file fills in.

Guarantees: an unknown key is a UserError that names the nearest known one, here as in an override or a YAML
file (`rl_stages/config/text.py`); values that cannot work together are refused when the tree is built, before
anything is written. Defaults are Nemotron-Cascade 2's numbers (facts/paper.md); what no paper states has no
default, or says where its value comes from. Torch-free.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from typing import Any, ClassVar, Literal, Self

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.rollouts import MAX_TOP_K, Sampling
from cascade_rl.engine.core.settings import DEFAULT_ROUTER, OptimizerConfig, ParallelConfig, RolloutConfig, RouterConfig
from cascade_rl.rl_stages.config.source import parse_sources
from cascade_rl.rl_stages.rewards.reward_models.aggregation import LengthTerms
from cascade_rl.rl_stages.rewards.reward_models.genrm import PromptForm

NAME = re.compile(r"[a-z][a-z0-9_]*")
SFT_OPTIMIZER = OptimizerConfig(
    lr=5e-5, min_lr=5e-6, schedule="cosine", warmup_steps=200, betas=(0.9, 0.98), weight_decay=0.1
)
RL_OPTIMIZER = OptimizerConfig(lr=3e-6, betas=(0.9, 0.95))
RL_SAMPLING = Sampling(max_new_tokens=49_152, temperature=1.0, top_p=1.0)
REWARD_MODEL_OPTIMIZER = OptimizerConfig(lr=2e-6, betas=(0.9, 0.95))
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


def _share(owner: str, node: object, *names: str) -> None:
    for name in names:
        value = getattr(node, name)
        _require(0 <= value <= 1, f"{owner}.{name}", "a value in [0, 1]", value)


def _check_kept(owner: str, sampling: Sampling) -> None:
    """What was kept at each position is recorded for the trainer; top_k bounds it. One token alone teaches nothing."""
    top_p, top_k = sampling.top_p, sampling.top_k
    _require(0 < top_p <= 1, f"{owner}.top_p", "more than 0 and at most 1", top_p)
    expected = f"2 to {MAX_TOP_K}, since all tokens that are kept are recorded for the trainer, or 0 with top_p = 1"
    _require(2 <= top_k <= MAX_TOP_K or (top_k == 0 and top_p == 1), f"{owner}.top_k", expected, top_k)


@dataclass(frozen=True, kw_only=True)
class BaseModel(Node):
    """What the first stage starts from: exactly one of

    hf         folder of a Hugging Face checkpoint (config.json, safetensors, tokenizer)
    hf_config  content of a config.json: a random model of that shape is made on the spot

    published  name in engine/models/published of the config.json that `hf` has: what a dry run and a plan read where
               the checkpoint is not at hand
    """

    hf: str | None = None
    hf_config: Mapping[str, Any] | None = None
    published: str | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("hf", "hf_config") if getattr(self, name) is not None]
        _require(len(given) == 1, "base", "exactly one of hf and hf_config", " and ".join(given) or "neither")


@dataclass(frozen=True, kw_only=True)
class Evaluation(Node):
    """Held-out scores of all domains, taken before and after each stage. Temperature 0 is greedy.

    unmeasured   domains that stages may train without a held-out score, since none of their answers has one alone
    max_infrastructure_failures   largest share of a domain's answers that may stay without a score
    """

    domains: tuple[str, ...]
    prompts_per_domain: int
    max_new_tokens: int
    unmeasured: tuple[str, ...] = ()
    temperature: float = 1.0
    max_infrastructure_failures: float = 0.1

    def __post_init__(self) -> None:
        _at_least(1, "evaluation", self, "prompts_per_domain", "max_new_tokens")
        _share("evaluation", self, "max_infrastructure_failures")
        _require(len(self.domains) > 0, "evaluation.domains", "at least one domain", self.domains)
        _require(self.temperature >= 0, "evaluation.temperature", "0 or more", self.temperature)


@dataclass(frozen=True, kw_only=True)
class Stage(Node):
    """What every stage has.

    parent        name of the earlier stage whose weights it starts from, or "base"; the one before where it is None
    data          sources: files, folders, `hf:` or `generate:` (rl_stages/data/rows.py, rl_stages/tasks/), each with a
                  count or a weight where it says so (rl_stages/config/source.py). Without weights the sources of
                  RL are joined, and those of SFT take turns
    token_budget  tokens per packed micro-batch; the longest sequence must fit
    router        what trains in the routers of a mixture of experts
    checkpoint_every, keep_checkpoints   steps between checkpoints, and how many complete ones stay on disk
    gate          domain -> how much of its held-out score the stage may lose; a stage that loses more stops the cascade
    nproc, parallel, rollout   where they differ from the cascade's
    """

    kind: ClassVar[str]
    trains_policy: ClassVar[bool] = True

    name: str
    domain: str
    data: tuple[str, ...]
    steps: int
    token_budget: int
    optimizer: OptimizerConfig
    router: RouterConfig = DEFAULT_ROUTER
    checkpoint_every: int = 1
    keep_checkpoints: int = 2
    parent: str | None = None
    gate: Mapping[str, float] = field(default_factory=dict)
    nproc: int | None = None
    parallel: ParallelConfig | None = None
    rollout: RolloutConfig | None = None

    @property
    def batch_terms(self) -> str:
        """What a step and the whole stage take, with units."""
        raise NotImplementedError

    @property
    def models_read(self) -> Mapping[str, str]:
        """Beside its parent, by the key that names them: earlier stages, or folders, written with a "/"."""
        return {}

    def __post_init__(self) -> None:
        _check_name("stage name", self.name)
        _at_least(1, self.name, self, "steps", "token_budget", "checkpoint_every", "keep_checkpoints")
        _require(len(self.data) > 0, f"{self.name}.data", "at least one source", self.data)
        parse_sources(self.data)
        for domain, loss in self.gate.items():
            _require(0 <= loss <= 1, f"{self.name}.gate.{domain}", "a loss in [0, 1]", loss)


@dataclass(frozen=True, kw_only=True)
class SftStage(Stage):
    """Supervised fine-tuning. Defaults: Cascade 2, Table 7 (facts/paper.md 3.1); the clip is not stated.

    sequences_per_step   demonstrations; the paper counts packed sequences of 256K tokens, 64 a step
    learned_turns        of a conversation, every turn of the assistant or the last; not in the paper, every in Nano-3's
    overlong             a sequence longer than token_budget ends the run ("error") or is left out and counted ("drop")
    """

    kind: ClassVar[str] = "sft"

    sequences_per_step: int = 64
    learned_turns: Literal["every", "last"] = "every"
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
        _at_least(1, self.name, self, "sequences_per_step")


@dataclass(frozen=True, kw_only=True)
class Plateau(Node):
    """A metric that gets no better: its mean over the last `window` steps is not better than that of the `window` steps
    before by at least `gain`. MOPD of Cascade 2 converges after 40 to 50 steps, judged by eye (facts/paper.md 2).

    metric  a key of metrics.jsonl
    better  which way it gets better; "lower" for reverse_kl
    """

    window: int
    gain: float
    metric: str = "reward"
    better: Literal["higher", "lower"] = "higher"

    def __post_init__(self) -> None:
        _at_least(1, "stop_at_plateau", self, "window")


@dataclass(frozen=True, kw_only=True)
class LengthClip(Node):
    """A share of truncated answers that was above `rate` in each of the last `window` steps, or below it: Math RL of
    Cascade 1 goes on to longer answers when it has come down to about 0.1 (facts/paper.md 1.4)."""

    rate: float
    window: int
    side: Literal["above", "below"] = "above"

    def __post_init__(self) -> None:
        _share("stop_at_length_clip", self, "rate")
        _at_least(1, "stop_at_length_clip", self, "window")


@dataclass(frozen=True, kw_only=True)
class OnPolicyStage(Stage):
    """What the stages have in common that learn from their own samples: one update per rollout batch.

    importance_low, importance_high   the band of the train/rollout ratio, see the stage's loss
    tme_bound                         largest allowed mean of exp|log p_train - log p_rollout|; 1.001 suits float32
    max_infrastructure_failures       largest share of a step's samples that may stay without a score
    stop_at_plateau, stop_at_length_clip   what ends the stage before its last step (rl_stages/run/stop_rule.py)
    """

    prompts_per_step: int = 128
    rollouts_per_prompt: int
    sampling: Sampling
    importance_low: float = 0.5
    importance_high: float = 2.0
    tme_bound: float = 1.001
    max_infrastructure_failures: float = 0.1
    stop_at_plateau: Plateau | None = None
    stop_at_length_clip: LengthClip | None = None

    @property
    def batch_terms(self) -> str:
        prompts, rollouts = self.prompts_per_step, self.rollouts_per_prompt
        samples = prompts * rollouts
        return (
            f"{self.steps} steps of {prompts:,} prompts x {rollouts} rollouts = {samples:,} samples a step, "
            f"{self.steps * samples:,} in all; at most {self.max_new_tokens:,} new tokens a sample; "
            f"micro-batches of {self.token_budget:,} tokens"
        )

    @property
    def max_new_tokens(self) -> int:
        """Of the longest answer in any of its steps."""
        return self.sampling.max_new_tokens

    @property
    def trained_domains(self) -> Collection[str]:
        """The domains whose held-out scores the stage means to raise."""
        raise NotImplementedError

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least(1, self.name, self, "prompts_per_step", "rollouts_per_prompt")
        _at_least(1, f"{self.name}.sampling", self.sampling, "max_new_tokens")
        heat = self.sampling.temperature
        _require(heat > 0, f"{self.name}.sampling.temperature", "more than 0", heat)
        _check_kept(f"{self.name}.sampling", self.sampling)
        low, high = self.importance_low, self.importance_high
        _require(0 <= low <= 1, f"{self.name}.importance_low", "a value in [0, 1]", low)
        _require(high >= 1, f"{self.name}.importance_high", "1 or more", high)
        _require(self.tme_bound >= 1, f"{self.name}.tme_bound", "1 or more", self.tme_bound)
        _share(self.name, self, "max_infrastructure_failures")


@dataclass(frozen=True, kw_only=True)
class Extension(Node):
    """New settings from step `from_step` on, counting from 0; None leaves what there was. Cascade 1 extends the answers
    of Math RL at fixed steps (Table 17, facts/paper.md 1.4); its other rule, to end a stage at a clip ratio of about
    10 %, is `LengthClip`."""

    from_step: int
    max_new_tokens: int
    temperature: float | None = None
    overlong: Literal["penalty", "filter"] | None = None

    def applied_to(self, stage: "GrpoStage") -> "GrpoStage":
        temperature = stage.sampling.temperature if self.temperature is None else self.temperature
        sampling = replace(stage.sampling, max_new_tokens=self.max_new_tokens, temperature=temperature)
        return replace(stage, sampling=sampling, overlong=self.overlong or stage.overlong, extensions=())


@dataclass(frozen=True, kw_only=True)
class EpochFilter(Node):
    """After each epoch, prompts that were answered always right or always wrong sit out the next one, but for these
    shares of them. Math RL of Cascade 1 (facts/paper.md 1.4)."""

    hard_readmission: float = 0.1
    easy_readmission: float = 0.01

    def __post_init__(self) -> None:
        _share("epoch_filter", self, "hard_readmission", "easy_readmission")


@dataclass(frozen=True, kw_only=True)
class CodeSwitch(Node):
    """The reward of an answer in another script to an English prompt: `reward`, or that added to the lowest reward of
    the batch. Cascade 1 (facts/paper.md 1.4): -1 in Math RL, 0 in Code RL, lowest - 10 in RLHF."""

    reward: float
    relative_to: Literal["zero", "lowest"] = "zero"


@dataclass(frozen=True, kw_only=True)
class GenRm(Node):
    """How a generative reward model compares the answers of a group (facts/paper.md 5.4).

    prompt   "instructed", "plain" or "roles": see rl_stages/rewards/reward_models/genrm.py
    offsets  of circular pairs, such as 1 (Nano-v3) or 1,2; None: all pairs, as in Cascade 2
    terms    what conciseness adds
    """

    prompt: PromptForm = "instructed"
    offsets: tuple[int, ...] | None = None
    terms: LengthTerms = field(default_factory=LengthTerms)


@dataclass(frozen=True, kw_only=True)
class RewardModel(Node):
    """The model that judges the answers of a stage. Sampling: that of the GenRM in NeMo-Gym (facts/paper.md 5.4).

    kind     "server": OpenAI-compatible, at `url`; "engine": one vLLM engine of our own on rank 0's node, beside the
             trainer's; "bradley_terry": what a reward_model stage trained, in a process of its own
    model    the name by which the server knows it; otherwise an earlier stage, or a folder, written with a "/"
    shaped   of "bradley_terry": tanh of the z-scores in a group, which Cascade 1 needs for weak reward models
    bonus    of "bradley_terry": the domain's verifier scores, and a right answer gets the sigmoid of its z-score beside
             its 1, as in IF-RL of Cascade 1's thinking models; otherwise the model scores alone
    api_key_env       environment variable that holds the server's key; None: it takes none
    deadline_seconds  of all that is asked about one group, and of each question
    retries           of a server that fails
    concurrency       questions asked at once
    """

    kind: Literal["server", "engine", "bradley_terry"]
    model: str
    shaped: bool = False
    bonus: bool = False
    url: str | None = None
    api_key_env: str | None = None
    deadline_seconds: float = 600.0
    retries: int = 3
    concurrency: int = 64
    max_tokens: int = 16_384
    temperature: float = 0.6
    top_p: float = 0.95
    genrm: GenRm = field(default_factory=GenRm)

    @property
    def folder_or_stage(self) -> str | None:
        """Where its weights are found; None for a server."""
        return None if self.kind == "server" else self.model

    def __post_init__(self) -> None:
        right = (self.url is not None) == (self.kind == "server")
        _require(right, "reward_model.url", "one for a server, and for nothing else", self.url)
        alone = not self.bonus or (self.kind == "bradley_terry" and not self.shaped)
        _require(alone, "reward_model.bonus", "it with bradley_terry alone, and not shaped", self.bonus)
        _at_least(1, "reward_model", self, "concurrency", "max_tokens")
        _at_least(0, "reward_model", self, "retries", "temperature")
        _require(self.deadline_seconds > 0, "reward_model.deadline_seconds", "more than 0", self.deadline_seconds)
        offsets = self.genrm.offsets
        wide = offsets is None or (len(offsets) > 0 and min(offsets) > 0)
        _require(wide, "reward_model.genrm.offsets", "numbers above 0, or none for all pairs", offsets)


@dataclass(frozen=True, kw_only=True)
class GrpoStage(OnPolicyStage):
    """On-policy RL with verified rewards. Defaults: IF-RL of Cascade 2, Table 8 (facts/paper.md 1.2), but without its
    dynamic filtering; each stage's own numbers are in rl_stages/recipes/.

    importance        weight of the train/rollout gap: "truncated" (clamped at importance_high), "masked"
                      (tokens outside [importance_low, importance_high] dropped), "off". Not in the paper
    kl_coefficient    KL to the stage's first weights; 0 but for RLHF (0.03)
    overlong          a truncated sample has reward 0 ("penalty") or leaves the loss ("filter")
    domains           those of its data, where they are several; `domain` is then only a name
    extensions        longer answers, and what changes with them, from given steps on
    dynamic_filtering   a step's groups are those with unequal rewards; more are drawn until it has all
    max_draws         times that a step draws before it gives up; 10 is NeMo-RL's
    epoch_filter      which prompts come back in the next epoch; None: all
    min_best_reward   a group whose best reward is not above it leaves the loss; 0.5 in agentless SWE RL of Cascade 2
    code_switch       the reward of an answer in another script to an English prompt; None: as any other
    thinking_fraction share of a draw's prompts in thinking mode; None: as the chat template has it
    reward_model      what judges the answers of the stage's domain in training; None: its verifier, as in evaluation
    sequence_error_bound   an answer whose mean of exp|log p_train - log p_rollout| is larger leaves the loss; NeMo-RL's
                      recipe for the 30B-A3B model has 2 (facts/paper.md 1.1); None: none does, see tme_bound
    """

    kind: ClassVar[str] = "grpo"

    rollouts_per_prompt: int = 16
    sampling: Sampling = RL_SAMPLING
    optimizer: OptimizerConfig = RL_OPTIMIZER
    importance: Literal["truncated", "masked", "off"] = "truncated"
    kl_coefficient: float = 0.0
    overlong: Literal["penalty", "filter"] = "penalty"
    domains: tuple[str, ...] = ()
    extensions: tuple[Extension, ...] = ()
    dynamic_filtering: bool = False
    max_draws: int = 10
    epoch_filter: EpochFilter | None = None
    min_best_reward: float | None = None
    code_switch: CodeSwitch | None = None
    thinking_fraction: float | None = None
    reward_model: RewardModel | None = None
    sequence_error_bound: float | None = None

    @property
    def trained_domains(self) -> Collection[str]:
        return self.domains or (self.domain,)

    @property
    def models_read(self) -> Mapping[str, str]:
        model = self.reward_model.folder_or_stage if self.reward_model else None
        return {} if model is None else {"reward_model.model": model}

    @property
    def max_new_tokens(self) -> int:
        return max([self.sampling.max_new_tokens, *(change.max_new_tokens for change in self.extensions)])

    def at(self, step: int) -> "GrpoStage":
        """The stage with the settings of step `step`, counting from 0."""
        stage = self
        for change in self.extensions:
            if change.from_step <= step:
                stage = change.applied_to(stage)
        return stage

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least(2, self.name, self, "rollouts_per_prompt")  # a group of one has no advantage
        _at_least(1, self.name, self, "max_draws")
        _require(self.kl_coefficient >= 0, f"{self.name}.kl_coefficient", "0 or more", self.kl_coefficient)
        if self.thinking_fraction is not None:
            _share(self.name, self, "thinking_fraction")
        bound = self.sequence_error_bound
        _require(bound is None or bound >= 1, f"{self.name}.sequence_error_bound", "1 or more", bound)
        self._check_extensions()

    def _check_extensions(self) -> None:
        starts = [change.from_step for change in self.extensions]
        rising = all(early < late for early, late in zip([0, *starts], starts, strict=False))
        _require(rising, f"{self.name}.extensions", "from_step above 0 and rising", starts)
        for change in self.extensions:
            change.applied_to(self)  # refuses, as a stage does, what cannot be


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
        _at_least(1, self.name, self, "topk")
        # a teacher's log-probs over what the student kept would be blind to what it would have said instead
        top_k = self.sampling.top_k
        _require(top_k == 0, f"{self.name}.sampling.top_k", "0: distillation is over the whole vocabulary", top_k)
        _require(len(self.teachers) > 0, f"{self.name}.teachers", "at least one teacher", dict(self.teachers))


BASE, BEST = "base", "best"  # the names that no stage can have


def is_folder(teacher: str) -> bool:
    """Whether a model that a stage reads is a Hugging Face folder, and not the name of a stage."""
    return "/" in teacher


@dataclass(frozen=True, kw_only=True)
class RewardModelStage(Stage):
    """Bradley-Terry training of a reward model of the policy's architecture, which no stage starts from. Defaults:
    Cascade 1 (facts/paper.md 1.4), whose 82K pairs are 320 steps, one epoch; the betas are those of its RL stages.

    data    preference pairs (rl_stages/tasks/pairs.py)
    domain  name of its score, the share of held-out pairs whose chosen answer has the higher reward
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
        _at_least(1, self.name, self, "pairs_per_step")
        _require(not self.gate, f"{self.name}.gate", "none: a reward model answers nothing", dict(self.gate))


STAGE_KINDS: dict[str, type[Stage]] = {
    stage.kind: stage for stage in (SftStage, GrpoStage, MopdStage, RewardModelStage)
}


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where a stage runs: training ranks, how they divide the model, and the engines."""

    nproc: int
    parallel: ParallelConfig
    rollout: RolloutConfig


@dataclass(frozen=True, kw_only=True)
class Cascade(Node):
    """The whole run: stages in order, each starting from the weights of its parent.

    nproc     training ranks; data parallelism is what `parallel` leaves of them
    layouts   kind of GPU -> stage -> where it runs there, instead of on the cascade's nproc, parallel and rollout
    hardware  which of `layouts` holds; a cluster's profile sets it
    """

    name: str
    base: BaseModel
    stages: tuple[Stage, ...]
    evaluation: Evaluation
    seed: int = 1
    nproc: int = 1
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    layouts: Mapping[str, Mapping[str, Layout]] = field(default_factory=dict)
    hardware: str = "h100"

    def __post_init__(self) -> None:
        _check_name("name", self.name)
        _at_least(0, "cascade", self, "seed")
        _at_least(1, "cascade", self, "nproc")
        self._check_stage_names()
        self._check_parents()
        self._check_layouts()
        self._check_lengths()
        self._check_domains()
        self._check_models_read()

    @property
    def scored_domains(self) -> tuple[str, ...]:
        """Whatever a stage has a held-out score in: every policy in evaluation.domains, a reward model in its own."""
        own = [stage.domain for stage in self.stages if not stage.trains_policy]
        return tuple(dict.fromkeys((*self.evaluation.domains, *own)))

    def stage(self, name: str) -> Stage:
        """The stage of that name. Raises UserError that names the nearest one."""
        names = [stage.name for stage in self.stages]
        if name not in names:
            raise UserError(f"{self.name} has no stage '{name}'. Did you mean '{nearest(name, names)}'?")
        return self.stages[names.index(name)]

    def earlier(self, stage: Stage) -> tuple[Stage, ...]:
        """The stages that are listed before it."""
        return self.stages[: self.stages.index(stage)]

    def parent(self, stage: Stage) -> Stage | None:
        """The stage whose weights it starts from; None for the base."""
        before = [other for other in self.earlier(stage) if other.trains_policy]
        if stage.parent is None:
            return before[-1] if before else None
        return None if stage.parent == BASE else self.stage(stage.parent)

    def layout(self, stage: Stage) -> Layout:
        """The stage's own, where it has one, then that of its hardware, and the cascade's."""
        shared = self.layouts.get(self.hardware, {}).get(stage.name, self)
        return Layout(
            nproc=stage.nproc or shared.nproc,
            parallel=stage.parallel or shared.parallel,
            rollout=stage.rollout or shared.rollout,
        )

    def _check_stage_names(self) -> None:
        names = [stage.name for stage in self.stages]
        _require(len(names) > 0, "stages", "at least one stage", self.stages)
        _require(len(set(names)) == len(names), "stages", "different names", names)
        taken = ({item.name for item in fields(self)} | {BASE, BEST}) & set(names)
        _require(not taken, "stages", "names that are no key of the cascade itself", sorted(taken))

    def _check_parents(self) -> None:
        for stage in self.stages:
            known = [BASE, *(other.name for other in self.earlier(stage) if other.trains_policy)]
            expected = f"an earlier stage or {BASE} ({', '.join(known)})"
            _require(stage.parent is None or stage.parent in known, f"{stage.name}.parent", expected, stage.parent)

    def _check_layouts(self) -> None:
        kinds = ", ".join(self.layouts)
        _require(not self.layouts or self.hardware in self.layouts, "hardware", f"one of {kinds}", self.hardware)
        for kind, layouts in self.layouts.items():
            for name in layouts:
                _require(name in [stage.name for stage in self.stages], f"layouts.{kind}", "names of stages", name)
        for stage in self.stages:
            layout = self.layout(stage)
            _check_layout(f"{stage.name}.nproc" if stage.nproc or stage.parallel else "nproc", layout)

    def _check_lengths(self) -> None:
        for stage in self.stages:
            limit = self.layout(stage).rollout.max_model_len
            expected = f"less than rollout.max_model_len = {limit}, which prompt and answer share"
            tokens = self.evaluation.max_new_tokens
            _require(tokens < limit, "evaluation.max_new_tokens", expected, tokens)
            if isinstance(stage, OnPolicyStage):
                tokens = stage.max_new_tokens
                _require(tokens < limit, f"{stage.name}.sampling.max_new_tokens", expected, tokens)
            judge = stage.reward_model if isinstance(stage, GrpoStage) else None
            if judge and judge.kind == "engine":
                _require(judge.max_tokens < limit, f"{stage.name}.reward_model.max_tokens", expected, judge.max_tokens)

    def _check_domains(self) -> None:
        measured = self.evaluation.domains
        expected = f"one of evaluation.domains ({', '.join(measured)})"
        for stage in self.stages:
            key = "teachers" if isinstance(stage, MopdStage) else "domain"
            for domain in stage.trained_domains if isinstance(stage, OnPolicyStage) else ():
                known = domain in measured or domain in self.evaluation.unmeasured
                _require(known, f"{stage.name}.{key}", expected, domain)
            for domain in stage.gate:
                _require(domain in measured, f"{stage.name}.gate", expected, domain)

    def _check_models_read(self) -> None:
        for stage in self.stages:
            policies = isinstance(stage, MopdStage)
            names = [other.name for other in self.earlier(stage) if other.trains_policy or not policies]
            earlier, best = ", ".join(names) or "none there is", f", {BEST}" if isinstance(stage, MopdStage) else ""
            expected = f'the name of an earlier stage ({earlier}){best} or a Hugging Face folder, written with a "/"'
            known = [*names, BEST] if best and names else names
            for key, model in stage.models_read.items():
                _require(is_folder(model) or model in known, f"{stage.name}.{key}", expected, model)


def _check_layout(owner: str, layout: Layout) -> None:
    cut = layout.parallel
    dense = cut.tensor * cut.pipeline * cut.context
    _require(
        layout.nproc % dense == 0,
        owner,
        f"a multiple of {dense} (parallel.tensor {cut.tensor} x pipeline {cut.pipeline} x context {cut.context})",
        layout.nproc,
    )
    experts = cut.expert * cut.expert_tensor * cut.pipeline
    _require(
        layout.nproc % experts == 0,
        owner,
        f"a multiple of {experts} (parallel.expert {cut.expert} x expert_tensor {cut.expert_tensor} "
        f"x pipeline {cut.pipeline})",
        layout.nproc,
    )
