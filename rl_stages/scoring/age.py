"""How many weight versions lie between the weights that sampled a token and those that learn from it."""

from collections.abc import Sequence

import numpy as np

from cascade_rl.engine.core.rollouts import Rollout
from cascade_rl.rl_stages.scoring.scored_sample import Sample


def ages(samples: Sequence[Sample], version: int) -> list[np.ndarray]:
    """int64 [n - 1] of each sample's sequence of n tokens, for learning in weights `version`; 0 in its prompt."""
    return [np.append(np.zeros(_prompt(sample), np.int64), _ages(sample.rollout, version)) for sample in samples]


def _prompt(sample: Sample) -> int:
    return len(sample.rollout.prompt_ids) - 1


def _ages(rollout: Rollout, version: int) -> np.ndarray:
    """int64 [answer]"""
    versions, starts = np.array(rollout.versions, np.int64).T
    return version - versions.repeat(np.diff(np.append(starts, len(rollout.token_ids))))
