"""The settings of on-policy RL with verified rewards."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Literal, get_args

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.rollouts import Sampling
from cascade_rl.engine.core.settings import OptimizerConfig
from cascade_rl.kernels.policy_objective import Importance, KlEstimator, PolicyObjective, Surrogate
from cascade_rl.rl_stages.config.node import Node, at_least, require, share
from cascade_rl.rl_stages.config.reward_model import RewardModel
from cascade_rl.rl_stages.config.stage import RL_OPTIMIZER, OnPolicyStage

Normaliser = Literal["prompt", "batch", "sequence"]
RL_SAMPLING = Sampling(max_new_tokens=49_152, temperature=1.0, top_p=1.0)


@dataclass(frozen=True, kw_only=True)
class Extension(Node):
    """New settings from step `from_step` on, counting from 0. None keeps the previous value. Cascade 1 extends the
    answers of Math RL at fixed steps (arXiv 2512.13607, Table 17). Its other rule, to end a stage at a clip ratio of
    about 10 %, is `LengthClip`.

    from_step       first step with these settings, counting from 0
    max_new_tokens  instead of the sampling's
    temperature     instead of the sampling's; None: as before
    overlong        instead of the stage's; None: as before
    """

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
    """Prompts whose answers in an epoch were all right or all wrong are left out of the next epoch, except for these
    shares of them. Used in Math RL of Cascade 1 (arXiv 2512.13607, section 4).

    hard_readmission  share of the prompts whose answers were all wrong that return all the same
    easy_readmission  share of those whose answers were all right
    """

    hard_readmission: float = 0.1
    easy_readmission: float = 0.01

    def __post_init__(self) -> None:
        share("epoch_filter", self, "hard_readmission", "easy_readmission")


@dataclass(frozen=True, kw_only=True)
class CodeSwitch(Node):
    """The reward of an answer in another script to an English prompt. It is `reward`, which with "lowest" is added to
    the lowest reward of the batch. Cascade 1 (arXiv 2512.13607, section 4): -1 in Math RL, 0 in Code RL, lowest - 10 in
    RLHF.

    reward       the reward, or what is added to the lowest
    relative_to  "zero": `reward` itself; "lowest": the lowest reward of the batch plus `reward`
    """

    reward: float
    relative_to: Literal["zero", "lowest"] = "zero"


@dataclass(frozen=True, kw_only=True)
class GrpoStage(OnPolicyStage):
    """On-policy RL with verified rewards. The defaults are those of IF-RL in Cascade 2 (arXiv 2603.19220, Table 8), but
    without its dynamic filtering. Each stage's own numbers are in rl_stages/recipes/.

    surrogate         surrogate of the policy objective (kernels/policy_objective.py). "reinforce" is the papers'.
                      "clip", "cispo" and "gspo" clip the policy ratio, for several updates per step
    clip_low, clip_high   the ratio is clipped to [1 - clip_low, 1 + clip_high]; the GSPO paper has 3e-4 and 4e-4
    dual_clip         for "clip" and "gspo": bounds the loss of a token with negative advantage; None: no bound
    updates_per_step  optimizer steps per step, each on an equal part of the step's groups, in order
    normaliser        what the loss is a mean over (rl_stages/scoring/normaliser.py). "batch": all tokens of an update,
                      the token mean of verl and NeMo-RL. "prompt": the tokens of each prompt's answers, then prompts,
                      as Eq. 1 of both papers is printed. "sequence": the tokens of each answer, then answers, as in an
                      ablation of Cascade 1
    importance        weight for the gap between trainer and sampler: "truncated" (clamped at importance_high), "masked"
                      (tokens outside [importance_low, importance_high] are dropped), "off". Not in the papers
    kl_estimator      estimator of the KL term: "k3", "k2" or "k1"
    kl_coefficient    weight of the KL to the stage's first weights; 0 except in RLHF (0.03)
    overlong          a truncated sample has reward 0, or what a Bradley-Terry model gives it ("penalty"), or is left
                      out of the loss ("filter")
    score_truncated   the verifier scores truncated answers too, as in TRL and verl; False: their score is 0, as in
                      evaluation. What is cut off in its reasoning is scored only by a reward of the user's
    domains           the domains of the data, if there are several; `domain` is then only a name
    extensions        longer answers, and the settings that change with them, from given steps on
    dynamic_filtering   a step uses only groups with unequal rewards, and samples more until it has enough
    max_draws         how often a step samples before it gives up; 10 in NeMo-RL
    epoch_filter      which prompts return in the next epoch; None: all
    min_best_reward   a group is left out of the loss unless its best reward is above this; 0.5 in agentless SWE RL of
                      Cascade 2
    wrong_format_reward   the reward, in training, of an answer in a wrong format or cut off; -1 in agentless SWE RL
                      (arXiv 2512.13607, Eq. 2); None: its score, which is 0
    code_switch       the reward of an answer in another script to an English prompt; None: no special reward
    thinking_fraction  share of the prompts in thinking mode, each time a step samples; None: the chat template decides
    reward_model      judges the answers of the stage's domain in training; None: its verifier does, as in evaluation
    sequence_error_bound   an answer is left out of the loss if its mean of exp|log p_train - log p_rollout| is above
                      this; 2 in NeMo-RL's recipe for the 30B-A3B model (grpo_nanov3.yaml); None: no such bound, only
                      tme_bound
    """

    kind: ClassVar[str] = "grpo"

    rollouts_per_prompt: int = 16
    sampling: Sampling = RL_SAMPLING
    optimizer: OptimizerConfig = RL_OPTIMIZER
    surrogate: Surrogate = "reinforce"
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    updates_per_step: int = 1
    normaliser: Normaliser = "batch"
    importance: Importance = "truncated"
    kl_estimator: KlEstimator = "k3"
    kl_coefficient: float = 0.0
    overlong: Literal["penalty", "filter"] = "penalty"
    score_truncated: bool = False
    domains: tuple[str, ...] = ()
    extensions: tuple[Extension, ...] = ()
    dynamic_filtering: bool = False
    max_draws: int = 10
    epoch_filter: EpochFilter | None = None
    min_best_reward: float | None = None
    wrong_format_reward: float | None = None
    code_switch: CodeSwitch | None = None
    thinking_fraction: float | None = None
    reward_model: RewardModel | None = None
    sequence_error_bound: float | None = None

    @property
    def objective(self) -> PolicyObjective:
        """The objective that an update minimises."""
        return PolicyObjective(**{item.name: getattr(self, item.name) for item in fields(PolicyObjective)})

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
        at_least(2, self.name, self, "rollouts_per_prompt")  # a group of one has no advantage
        at_least(1, self.name, self, "max_draws")
        self._check_objective()
        known = get_args(Normaliser)
        require(self.normaliser in known, f"{self.name}.normaliser", f"one of {', '.join(known)}", self.normaliser)
        if self.thinking_fraction is not None:
            share(self.name, self, "thinking_fraction")
        bound = self.sequence_error_bound
        require(bound is None or bound >= 1, f"{self.name}.sequence_error_bound", "1 or more", bound)
        beside = self.wrong_format_reward is None or not self.score_truncated
        require(
            beside, f"{self.name}.score_truncated", "false with wrong_format_reward, which is for cut answers too", True
        )
        self._check_warmup()
        self._check_extensions()

    def _check_warmup(self) -> None:
        warmup, first = self.optimizer.warmup_steps, self.optimizer.warmup_init_lr
        expected = f"more than 0 with warmup_steps = {warmup}: at rate 0 the samples of the first step teach nothing"
        require(warmup == 0 or first > 0, f"{self.name}.optimizer.warmup_init_lr", expected, first)

    def _check_objective(self) -> None:
        try:
            clips = self.objective.clips
        except ValueError as reason:
            raise UserError(f"{self.name}.{reason}.") from None
        updates, groups = self.updates_per_step, self.prompts_per_step
        divides = updates > 0 and groups % updates == 0
        require(divides, f"{self.name}.updates_per_step", f"a divisor of prompts_per_step = {groups}", updates)
        expected = "1 with surrogate=reinforce, which has no policy ratio"
        require(clips or updates == 1, f"{self.name}.updates_per_step", expected, updates)

    def _check_extensions(self) -> None:
        starts = [change.from_step for change in self.extensions]
        rising = all(early < late for early, late in zip([0, *starts], starts, strict=False))
        require(rising, f"{self.name}.extensions", "from_step above 0 and rising", starts)
        for change in self.extensions:
            change.applied_to(self)  # raises UserError for invalid settings, as a stage does
