"""The reward of Cascade 1's RLHF: a Bradley-Terry model's score of each answer (arXiv 2512.13607, section 4)."""

from __future__ import annotations

from collections.abc import Sequence

from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.core.verdict import Verdict
from cascade_rl.rl_stages.rewards.reward_models.bradley_terry.conversation import RewardScorer, conversations
from cascade_rl.rl_stages.rewards.reward_models.bradley_terry.shaping import tanh_of_z
from cascade_rl.rl_stages.rewards.reward_models.server_client import JudgeFailure


class BradleyTerryVerifier:
    """A `GroupVerifier`: the model's rewards or, if `shaped`, tanh of their z-scores over the group.

    Cascade 1 needs the shaping only for weak reward models (arXiv 2512.13607, ablation of RLHF). An answer that was cut
    off is scored like any other: the scale has no zero. Closing it closes the scorer.
    """

    scores_truncated = True

    def __init__(self, scorer: RewardScorer, *, shaped: bool) -> None:
        self.scorer, self.shaped = scorer, shaped
        self.concurrency = scorer.concurrency

    def rank(self, task: Task, texts: Sequence[str]) -> list[Verdict]:
        """A verdict for each text; infrastructure failures if the scorer has none."""
        try:
            raw = self.scorer.score(conversations(task, texts))
        except JudgeFailure as failure:
            return [Verdict.infrastructure_failure(str(failure))] * len(texts)
        rewards = tanh_of_z(raw) if self.shaped else raw
        return [Verdict.scored(reward, {"reward_model": value}) for reward, value in zip(rewards, raw, strict=True)]

    def close(self) -> None:
        """Ends the scorer."""
        self.scorer.close()
