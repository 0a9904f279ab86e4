"""The IF-RL reward of Cascade 1's thinking models: rules decide, and a reward model ranks right answers.

R = 1 + sigmoid(z) if the verifier of the domain gives 1, else 0. z is the reward model's score, normalised over the
group (arXiv 2512.13607, section 4).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence

from cascade_rl.engine.core.rollouts import Outcome
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.core.verdict import Verdict, Verifier
from cascade_rl.rl_stages.rewards.reward_models.bradley_terry.conversation import RewardScorer, conversations
from cascade_rl.rl_stages.rewards.reward_models.bradley_terry.shaping import z_scores
from cascade_rl.rl_stages.rewards.reward_models.server_client import JudgeFailure


class BonusVerifier:
    """A `GroupVerifier`. Mean and deviation are over all answers of the call, wrong ones too; the paper does not say.

    Closing it closes the verifier and the scorer.
    """

    scores_truncated = False  # rules score first, and they give a truncated answer 0

    def __init__(self, verifier: Verifier, scorer: RewardScorer) -> None:
        self.verifier, self.scorer = verifier, scorer
        self.concurrency = scorer.concurrency
        self._alone = threading.Lock()  # the verifier may take one call at a time

    def rank(self, task: Task, texts: Sequence[str]) -> list[Verdict]:
        """A verdict for each text; infrastructure failures if the scorer has no score."""
        with self._alone:
            verdicts = [self.verifier(task, text) for text in texts]
        try:
            scores = self.scorer.score(conversations(task, texts))
        except JudgeFailure as failure:
            return [Verdict.infrastructure_failure(str(failure))] * len(texts)
        return list(map(with_bonus, verdicts, scores, z_scores(scores)))

    def close(self) -> None:
        """Ends the verifier and the scorer."""
        self.verifier.close()
        self.scorer.close()


def with_bonus(verdict: Verdict, score: float, z: float) -> Verdict:
    """The verdict with the bonus. A wrong format or an infrastructure failure stays as it is."""
    if verdict.outcome is not Outcome.COMPLETED:
        return verdict
    reward = 1 + 1 / (1 + math.exp(-z)) if verdict.score == 1 else 0.0
    parts = {**verdict.parts, "verifier": verdict.score or 0.0, "reward_model": score}
    return Verdict.scored(reward, parts, verdict.detail)
