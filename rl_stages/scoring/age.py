"""How many weight versions lie between the weights that sampled a token and those that learn from it."""

from collections.abc import Sequence

import numpy as np

from cascade_rl.engine.core.rollouts import Rollout
from cascade_rl.rl_stages.scoring.scored_sample import Sample


def ages(samples: Sequence[Sample], version: int) -> list[np.ndarray]:
    """int64 [n - 1] of each sample's sequence of n tokens, for learning in weights `version`; 0 in its prompt."""
    return [_age(sample.rollout, version) for sample in samples]


def told(ages: Sequence[np.ndarray], masks: Sequence[np.ndarray]) -> dict[str, float]:
    """Metrics of the ages of the loss tokens (`masks`): the mean, those of the first and last token of each sample, the
    largest, and the share of each."""
    found = [age[mask] for age, mask in zip(ages, masks, strict=True) if mask.any()]
    counts = np.bincount(np.concatenate(found))
    return {
        "age": float(counts @ np.arange(len(counts)) / counts.sum()),
        "age_first": float(np.mean([age[0] for age in found])),
        "age_last": float(np.mean([age[-1] for age in found])),
        "age_max": float(len(counts) - 1),
        **{f"age_{age}_fraction": float(share) for age, share in enumerate(counts / counts.sum())},
    }


def token_versions(rollout: Rollout) -> np.ndarray:
    """The weight version of each token of the answer, int64 [answer]."""
    versions, starts = np.array(rollout.versions, np.int64).T
    return versions.repeat(np.diff(np.append(starts, len(rollout.token_ids))))


def _age(rollout: Rollout, version: int) -> np.ndarray:
    prompt = np.zeros(len(rollout.prompt_ids) - 1, np.int64)
    return np.concatenate([prompt, version - token_versions(rollout)])
