"""A rollout whose environment has already judged it."""

from __future__ import annotations

from dataclasses import dataclass

from cascade_rl.engine.core.rollouts import Rollout
from cascade_rl.rl_stages.core.verdict import Verdict


@dataclass(frozen=True, kw_only=True)
class EpisodeRollout(Rollout):
    """A whole episode with the verdict of its environment."""

    verdict: Verdict
