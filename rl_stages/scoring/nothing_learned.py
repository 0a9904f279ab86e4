"""What a step tells of a stage that cannot learn: answers that are all cut off, and groups without unequal rewards."""

from collections.abc import Iterator, Sequence

from cascade_rl.engine.core.rollouts import Outcome
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.scoring.group_scoring import Group, has_signal


def nothing_learned(stage: GrpoStage, groups: Sequence[Group]) -> str | None:
    """One line with the numbers of a step's groups; None if the step has something to learn from."""
    told = "; ".join((*_cut(stage, groups), *_equal(groups)))
    return f"{told}. See docs/symptoms/reward_flat.md" if told else None


def _cut(stage: GrpoStage, groups: Sequence[Group]) -> Iterator[str]:
    samples = [sample for group in groups for sample in group]
    if all(sample.verdict.outcome is Outcome.TRUNCATED for sample in samples):
        score = "" if stage.score_truncated else ", which without score_truncated is a score of 0"
        limit = stage.sampling.max_new_tokens
        yield f"all {len(samples)} answers were cut off{score} (max_new_tokens = {limit}, overlong = {stage.overlong})"


def _equal(groups: Sequence[Group]) -> Iterator[str]:
    if any(map(has_signal, groups)):
        return
    rewards = [sample.reward for group in groups for sample in group if sample.reward is not None]
    found = f", which are from {min(rewards):g} to {max(rewards):g}" if rewards else ""
    yield f"nothing is learned: none of {len(groups)} groups has unequal rewards{found}"
