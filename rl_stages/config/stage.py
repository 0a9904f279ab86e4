"""The settings that all stages share, and those of the stages that learn from their own samples."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from cascade_rl.engine.core.rollouts import MAX_TOP_K, Sampling
from cascade_rl.engine.core.settings import (
    DEFAULT_ROUTER,
    LoraConfig,
    OptimizerConfig,
    ParallelConfig,
    RolloutConfig,
    RouterConfig,
)
from cascade_rl.rl_stages.config.node import Node, at_least, check_name, require, share
from cascade_rl.rl_stages.config.room import Overlong
from cascade_rl.rl_stages.config.source import parse_sources

RL_OPTIMIZER = OptimizerConfig(lr=3e-6, betas=(0.9, 0.95))


def check_kept(owner: str, sampling: Sampling) -> None:
    """Tokens kept at a position are recorded for the trainer, so top_k bounds them. One token alone teaches nothing."""
    top_p, top_k = sampling.top_p, sampling.top_k
    require(0 < top_p <= 1, f"{owner}.top_p", "more than 0 and at most 1", top_p)
    expected = f"2 to {MAX_TOP_K}, since all tokens that are kept are recorded for the trainer, or 0 with top_p = 1"
    require(2 <= top_k <= MAX_TOP_K or (top_k == 0 and top_p == 1), f"{owner}.top_k", expected, top_k)


@dataclass(frozen=True, kw_only=True)
class Stage(Node):
    """The settings that every stage has.

    kind          what a file calls the class: a name of `STAGE_KINDS`, or `python:MODULE:CLASS` for one's own
    loop          of one's own class: `MODULE:FUNCTION`, which gets the session
    name          of the stage: lower case letters, digits and _
    domain        of the rows that name none (rl_stages/tasks/domains.py), or a function of the user's
                  ("python:MODULE:NAME")
    steps         optimizer steps; with several updates per step, batches of samples. Rules may end the stage earlier
    optimizer     AdamW and its learning rate
    parent        name of the earlier stage whose weights it starts from, or "base"; None: the previous policy stage
    data          sources: files, folders, `hf:` or `generate:` (rl_stages/data/rows.py, rl_stages/tasks/), each with an
                  optional count or weight (rl_stages/config/source.py). Without weights the sources of RL are
                  concatenated, and those of SFT alternate
    heldout       sources of rows that measure the stage, in the forms of `data`. RL and reward models then train on all
                  of `data`; otherwise `evaluation.heldout_fraction` of it is withheld
    columns       field of a row -> the column where the data have it (rl_stages/tasks/row_form.py)
    token_budget  tokens per packed micro-batch; the longest sequence must fit
    router        which parts of the MoE routers are trained
    lora          low-rank adapters are trained instead of the weights (docs/lora.md); None: all weights are trained
    checkpoint_every, keep_checkpoints   steps between checkpoints, and how many complete ones stay on disk
    gate          domain -> how much of its held-out score the stage may lose; a stage that loses more stops the cascade
    nproc, parallel, rollout   instead of the cascade's; None: as there
    """

    kind: ClassVar[str]
    loop: ClassVar[str] = ""
    trains_policy: ClassVar[bool] = True

    name: str
    domain: str
    data: tuple[str, ...]
    steps: int
    token_budget: int
    optimizer: OptimizerConfig
    heldout: tuple[str, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    router: RouterConfig = DEFAULT_ROUTER
    lora: LoraConfig | None = None
    checkpoint_every: int = 1
    keep_checkpoints: int = 2
    parent: str | None = None
    gate: Mapping[str, float] = field(default_factory=dict)
    nproc: int | None = None
    parallel: ParallelConfig | None = None
    rollout: RolloutConfig | None = None

    @property
    def batch_terms(self) -> str:
        """The size of a step and of the whole stage, with units."""
        raise NotImplementedError

    @property
    def models_read(self) -> Mapping[str, str]:
        """Models besides the parent, by configuration key: earlier stages, or folders, written with a "/"."""
        return {}

    def __post_init__(self) -> None:
        check_name("stage name", self.name)
        at_least(1, self.name, self, "steps", "token_budget", "checkpoint_every", "keep_checkpoints")
        _check_optimizer(f"{self.name}.optimizer", self.optimizer)
        require(len(self.data) > 0, f"{self.name}.data", "at least one source", self.data)
        parse_sources(self.data)
        for source in parse_sources(self.heldout):
            whole = source.count is None and source.weight is None
            require(whole, f"{self.name}.heldout", "sources without count and weight", self.heldout)
        still = self.lora is None or not self.router.bias_update_rate
        require(still, f"{self.name}.router.bias_update_rate", "0 or none with lora", self.router.bias_update_rate)
        for domain, loss in self.gate.items():
            require(0 <= loss <= 1, f"{self.name}.gate.{domain}", "a loss in [0, 1]", loss)


def _check_optimizer(owner: str, optimizer: OptimizerConfig) -> None:
    at_least(0, owner, optimizer, "lr", "min_lr", "warmup_init_lr", "warmup_steps", "weight_decay", "clip_grad", "eps")
    for beta in optimizer.betas:
        require(0 <= beta < 1, f"{owner}.betas", "values of at least 0 and less than 1", optimizer.betas)


@dataclass(frozen=True, kw_only=True)
class Plateau(Node):
    """Ends a stage when a metric stops improving: its mean over the last `window` steps is not better, by at least
    `gain`, than its mean over the `window` steps before. Not in the papers: arXiv 2603.19220, section 4.4, says only
    that MOPD converges within 40 to 50 steps.

    window  steps in each of the two means
    gain    what the mean must improve by, in units of the metric
    metric  a key of metrics.jsonl
    better  the direction of improvement; "lower" for reverse_kl
    """

    window: int
    gain: float
    metric: str = "reward"
    better: Literal["higher", "lower"] = "higher"

    def __post_init__(self) -> None:
        at_least(1, "stop_at_plateau", self, "window")


@dataclass(frozen=True, kw_only=True)
class LengthClip(Node):
    """Ends a stage when the share of truncated answers was above (or below) `rate` in each of the last `window` steps.
    Math RL of Cascade 1 moves on to longer answers at a share of about 0.1 (arXiv 2512.13607, section 4).

    rate    share of truncated answers, in [0, 1]
    window  steps in a row
    side    "above": too many answers are cut; "below": so few that the limit no longer matters
    """

    rate: float
    window: int
    side: Literal["above", "below"] = "above"

    def __post_init__(self) -> None:
        share("stop_at_length_clip", self, "rate")
        at_least(1, "stop_at_length_clip", self, "window")


@dataclass(frozen=True, kw_only=True)
class OnPolicyStage(Stage):
    """The settings of stages that learn from their own samples, with one update per rollout batch.

    prompts_per_step                  prompts of a batch of samples
    rollouts_per_prompt               answers to each of them; in RL they are the group that advantages compare
    sampling                          how answers are sampled: lengths, temperature, top-p, top-k
    importance_low, importance_high   band of the train/rollout probability ratio, see the stage's loss
    tme_bound                         largest allowed mean of exp|log p_train - log p_rollout| over the tokens sampled
                                      from the weights of the step; 1.001 suits float32
    stale_gap_bound                   largest allowed mean of |log p_train - log p_rollout|, in nats, over the tokens
                                      sampled from older weights (rollout.max_staleness)
    max_infrastructure_failures       largest share of a step's samples that may have no score
    min_answer_tokens, overlong_prompts   a prompt that leaves its answer fewer tokens is left out and counted
                                      ("drop"), or ends the run ("error"); see rl_stages/config/room.py
    stop_at_plateau, stop_at_length_clip   rules that end the stage early (rl_stages/run/stop_rule.py)
    """

    needs_reward: ClassVar[bool] = True
    """Whether a sample without a score teaches nothing."""

    prompts_per_step: int = 128
    rollouts_per_prompt: int
    sampling: Sampling
    importance_low: float = 0.5
    importance_high: float = 2.0
    tme_bound: float = 1.001
    stale_gap_bound: float = 0.5
    max_infrastructure_failures: float = 0.1
    min_answer_tokens: int = 1
    overlong_prompts: Overlong = "drop"
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
        """The longest answer that any of its steps allows."""
        return self.sampling.max_new_tokens

    @property
    def trained_domains(self) -> Collection[str]:
        """The domains whose held-out scores the stage is meant to raise."""
        raise NotImplementedError

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, self.name, self, "prompts_per_step", "rollouts_per_prompt", "min_answer_tokens")
        at_least(1, f"{self.name}.sampling", self.sampling, "max_new_tokens")
        heat = self.sampling.temperature
        require(heat > 0, f"{self.name}.sampling.temperature", "more than 0", heat)
        check_kept(f"{self.name}.sampling", self.sampling)
        low, high = self.importance_low, self.importance_high
        require(0 <= low <= 1, f"{self.name}.importance_low", "a value in [0, 1]", low)
        require(high >= 1, f"{self.name}.importance_high", "1 or more", high)
        require(self.tme_bound >= 1, f"{self.name}.tme_bound", "1 or more", self.tme_bound)
        require(self.stale_gap_bound > 0, f"{self.name}.stale_gap_bound", "more than 0", self.stale_gap_bound)
        share(self.name, self, "max_infrastructure_failures")
