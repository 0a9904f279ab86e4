"""From verdicts to advantages: applies the rules of a stage to the scores of each prompt's answers."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from cascade_rl.engine.core.rollouts import Outcome, Rollout
from cascade_rl.engine.train.losses import group_advantages
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.core.verdict import Verdict
from cascade_rl.rl_stages.scoring.code_switch import with_code_switch
from cascade_rl.rl_stages.scoring.pending_group import Answer
from cascade_rl.rl_stages.scoring.scored_sample import Penalty, Sample

Group = list[Sample]


def score_groups(
    stage: GrpoStage,
    tasks: Sequence[Task],
    groups: Sequence[Sequence[Rollout]],
    answers: Sequence[Sequence[Answer]],
) -> list[Group]:
    """The samples of one draw by prompt, with reward, whether it is trained on, and advantage in its group."""
    samples = [
        Sample(task, rollout, *answer)
        for task, rollouts, judged in zip(tasks, groups, answers, strict=True)
        for rollout, answer in zip(rollouts, judged, strict=True)
    ]
    if stage.wrong_format_reward is not None:
        samples = [_with_format_reward(sample, stage.wrong_format_reward) for sample in samples]
    if stage.code_switch:
        samples = with_code_switch(samples, stage.code_switch)
    rest = iter(samples)
    return [_with_advantages(stage, list(islice(rest, len(rollouts)))) for rollouts in groups]


def has_signal(group: Group) -> bool:
    """Whether the rewards of its trained samples differ, so that something can be learned from it."""
    return any(sample.advantage != 0 for sample in group)


def pass_rate(group: Group) -> float | None:
    """Mean score of a prompt's answers, truncated ones included; None if none could be scored."""
    scores = [sample.verdict.score for sample in group if sample.verdict.score is not None]
    return float(np.mean(scores)) if scores else None


def _with_advantages(stage: GrpoStage, group: Group) -> Group:
    useful = stage.min_best_reward is None or _best_reward(group) > stage.min_best_reward
    trained = np.array([useful and _is_trained(sample.verdict, stage.overlong) for sample in group])
    rewards = np.array([np.nan if sample.reward is None else sample.reward for sample in group])
    advantages = group_advantages(rewards, trained)
    return [
        replace(sample, advantage=float(advantage), trained=bool(mask))
        for sample, advantage, mask in zip(group, advantages, trained, strict=True)
    ]


def _with_format_reward(sample: Sample, reward: float) -> Sample:
    unreadable = sample.verdict.outcome in (Outcome.WRONG_FORMAT, Outcome.TRUNCATED)
    return replace(sample, penalty=Penalty("wrong_format", reward)) if unreadable else sample


def _best_reward(group: Group) -> float:
    return max((sample.reward for sample in group if sample.reward is not None), default=-np.inf)


def _is_trained(verdict: Verdict, overlong: str) -> bool:
    if verdict.outcome is Outcome.INFRASTRUCTURE_FAILURE:
        return False
    return not (verdict.outcome is Outcome.TRUNCATED and overlong == "filter")
