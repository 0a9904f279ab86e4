"""Number and lengths of the sequences of a step. The mean length determines the time, the maximum length the memory."""

from dataclasses import dataclass

from cascade_rl.engine.core.settings import RolloutConfig
from cascade_rl.launchers.plan.hardware import Assumed
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.config.mopd_stage import MopdStage
from cascade_rl.rl_stages.config.reward_model_stage import RewardModelStage
from cascade_rl.rl_stages.config.sft_stage import SftStage
from cascade_rl.rl_stages.config.stage import OnPolicyStage, Stage


@dataclass(frozen=True)
class Workload:
    """The sequences of one step.

    sequences   number of sequences that are trained on
    drawn       number of sequences that are sampled; 0 in a stage that learns from given answers
    prompt, answer   mean tokens; in a stage with given answers, `answer` is the whole sequence
    longest_answer, longest   maximum tokens of an answer, and of a sequence with its prompt
    """

    sequences: int
    drawn: int
    prompt: int
    answer: int
    longest_answer: int
    longest: int

    @property
    def mean(self) -> int:
        return self.prompt + self.answer

    @property
    def tokens(self) -> int:
        """Mean number of tokens that the trainer processes."""
        return self.sequences * self.mean

    @property
    def most_tokens(self) -> int:
        return self.sequences * self.longest


def workload_of(stage: Stage, rollout: RolloutConfig, assumed: Assumed) -> Workload:
    if isinstance(stage, OnPolicyStage):
        return _on_policy(stage, rollout, assumed)
    sequences = _given(stage)
    mean = min(assumed.demonstration_tokens, stage.token_budget)
    return Workload(sequences, 0, 0, mean, stage.token_budget, stage.token_budget)


def _on_policy(stage: OnPolicyStage, rollout: RolloutConfig, assumed: Assumed) -> Workload:
    samples = stage.prompts_per_step * stage.rollouts_per_prompt
    more = assumed.filtered_draws if isinstance(stage, GrpoStage) and stage.dynamic_filtering else 1
    longest = min(stage.max_new_tokens, rollout.max_model_len - 1)
    prompt = min(assumed.prompt_tokens, rollout.max_model_len - longest)
    return Workload(
        sequences=samples,
        drawn=round(samples * more),
        prompt=prompt,
        answer=max(round(assumed.answer_share * stage.max_new_tokens), 1),
        longest_answer=longest,
        longest=prompt + longest,
    )


def _given(stage: Stage) -> int:
    if isinstance(stage, SftStage):
        return stage.sequences_per_step
    assert isinstance(stage, RewardModelStage)
    return 2 * stage.pairs_per_step


def values_per_token(stage: Stage) -> int:
    """Float32 that ride with each token into the loss."""
    if isinstance(stage, GrpoStage):  # the sampler's log-prob rides along, whether or not it is read
        return len({"rollout_logprob", *stage.objective.reads})
    if isinstance(stage, MopdStage):  # advantage, the sampler's log-prob, share, teacher, and the teacher's best
        return 4 + (2 * stage.topk if stage.objective == "topk" else 0)
    return 1 if isinstance(stage, RewardModelStage) else 0
