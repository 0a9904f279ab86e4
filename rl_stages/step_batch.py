"""The groups of one step. Dynamic filtering (DAPO, arXiv 2503.14476) drops those without signal and samples more.

    until the step has all its groups, at most max_draws times:
        take as many prompts as are missing, divided by the share of groups with signal so far; sample, score
        keep the groups with signal, in the order of their prompts

Surplus groups are dropped too: in the next step they would be off-policy. With `rollout.max_staleness` the first draw
of a step may come from older weights (rollout_stream.py); the others never do.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor

from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.prompt_ledger import PromptLedger
from cascade_rl.rl_stages.rollout_stream import Ask, Drawn, RolloutStream, rollout_stream
from cascade_rl.rl_stages.scoring.group_scoring import Group, has_signal, pass_rate, score_groups
from cascade_rl.rl_stages.scoring.infrastructure import require_infrastructure
from cascade_rl.rl_stages.scoring.scored_sample import Sample, outcomes
from cascade_rl.rl_stages.session import Session


class TooFewGroups(RuntimeError):
    """The draws of a step gave fewer groups with signal than it needs."""


@dataclass(frozen=True)
class StepBatch:
    """All groups of a step by draw, and the groups that it learns from."""

    draws: tuple[Sequence[Group], ...]
    groups: Sequence[Group]

    @property
    def samples(self) -> list[Sample]:
        return [sample for group in self.groups for sample in group]

    @property
    def drawn(self) -> list[Sample]:
        return [sample for draw in self.draws for group in draw for sample in group]

    def metrics(self, stage: GrpoStage) -> dict[str, float]:
        """Metrics of all samples; `signal_fraction` only of those that are learned from."""
        drawn, samples = self.drawn, self.samples
        metrics = outcomes(drawn) | {"signal_fraction": _share(samples, lambda sample: sample.advantage != 0)}
        if stage.code_switch:
            metrics["code_switch_fraction"] = _share(drawn, _has_switched)
        if stage.dynamic_filtering:
            groups = [group for draw in self.draws for group in draw]
            accepted = sum(map(has_signal, groups))
            metrics |= {"draws": len(self.draws), "accept_rate": accepted / len(groups)}
            metrics["surplus_groups"] = accepted - len(self.groups)
        return metrics


def first_draws(session: Session[GrpoStage], prompts: PromptLedger) -> RolloutStream:
    """The first draw of each step."""

    def ask(step: int) -> Ask:
        stage = session.stage.at(step)
        return _ask(stage, prompts, step, 0, stage.prompts_per_step)

    return rollout_stream(session, ask)


def draw_batch(stream: RolloutStream, stage: GrpoStage, prompts: PromptLedger, step: int) -> StepBatch:
    """The batch of step `step`, counting from 0. Collective. `stage` has the settings of that step.

    What its first draw lacks is drawn from the newest weights. Raises InfrastructureFailures if too many of its samples
    have no score, and TooFewGroups after `max_draws` draws.
    """
    draws: list[Sequence[Group]] = []
    kept: list[Group] = []
    for number in range(stage.max_draws):
        count = _wanted(stage.prompts_per_step, sum(map(len, draws)), len(kept))
        drawn = stream.more(_ask(stage, prompts, step, number, count)) if number else stream.take(step)
        draws.append(_scored(stream.session, stage, drawn))
        prompts.learn(step, number, drawn.tasks, [pass_rate(group) for group in draws[-1]])
        _require_scores(stage, draws, step)
        kept += [group for group in draws[-1] if has_signal(group) or not stage.dynamic_filtering]
        if len(kept) >= stage.prompts_per_step:
            return StepBatch(tuple(draws), kept[: stage.prompts_per_step])
    raise TooFewGroups(_told(stage, draws, len(kept), step))


def in_modes(tasks: Sequence[Task], thinking_fraction: float | None) -> list[Task]:
    """The tasks, with an evenly spread share in thinking mode and the others in non-thinking mode."""
    if thinking_fraction is None:
        return list(tasks)
    counts = [floor(index * thinking_fraction + 0.5) for index in range(len(tasks) + 1)]
    return [replace(task, thinking=counts[i + 1] > counts[i]) for i, task in enumerate(tasks)]


def _ask(stage: GrpoStage, prompts: PromptLedger, step: int, number: int, count: int) -> Ask:
    label = f"{stage.name}/{step + 1}" + (f"+{number}" if number else "")
    tasks = in_modes(prompts.take(step, number, count), stage.thinking_fraction)
    return Ask(label, tasks, stage.rollouts_per_prompt, stage.sampling)


def _scored(session: Session[GrpoStage], stage: GrpoStage, drawn: Drawn) -> list[Group]:
    with session.phase("reward"):
        return session.on_rank0(
            lambda zero: score_groups(stage, *drawn, zero.rewards(*drawn)),
            lambda groups: [[sample.told() for sample in group] for group in groups],
        )


def _require_scores(stage: GrpoStage, draws: Sequence[Sequence[Group]], step: int) -> None:
    verdicts = [(sample.rollout.id, sample.verdict) for draw in draws for group in draw for sample in group]
    require_infrastructure(verdicts, stage.max_infrastructure_failures, f"step {step + 1}")


def _wanted(groups: int, drawn: int, kept: int) -> int:
    """Number of prompts of the next draw."""
    return min(groups, ceil((groups - kept) * drawn / kept)) if kept else groups


def _share(samples: Sequence[Sample], holds: Callable[[Sample], bool]) -> float:
    return sum(map(holds, samples)) / len(samples)


def _has_switched(sample: Sample) -> bool:
    return sample.penalty is not None and sample.penalty.rule == "code_switch"


def _told(stage: GrpoStage, draws: Sequence[Sequence[Group]], kept: int, step: int) -> str:
    rates = ", ".join(f"{sum(map(has_signal, draw))} of {len(draw)}" for draw in draws)
    reward = outcomes([sample for draw in draws for group in draw for sample in group]).get("reward")
    return (
        f"step {step + 1}: expected {stage.prompts_per_step} groups whose rewards are not all equal, found {kept} in "
        f"{len(draws)} draws ({rates}; mean reward {reward}). Give the stage prompts that the policy answers right "
        "sometimes, raise max_draws, or switch dynamic_filtering off"
    )
