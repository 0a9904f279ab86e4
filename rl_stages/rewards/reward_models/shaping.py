"""What Cascade 1 makes of a Bradley-Terry reward before GRPO sees it (facts/paper.md 1.4 and 4.2, RLHF).

The third part, the reward of an answer that leaves English, is `stage.code_switch` with `relative_to="lowest"`, -10.
"""

from collections.abc import Sequence

import numpy as np


def scored_text(text: str) -> str:
    """What is scored of an answer: all behind `</think>`; the whole text where there is none."""
    return text.rpartition("</think>")[2].strip()


def tanh_of_z(rewards: Sequence[float]) -> list[float]:
    """tanh of the z-scores of one prompt's group: what keeps a weak reward model from collapsing the policy."""
    return np.tanh(z_scores(rewards)).tolist()


def z_scores(rewards: Sequence[float]) -> list[float]:
    """(r - mean) / std over one prompt's group.

    As in `group_advantages`, the standard deviation is Bessel-corrected and has 1e-6 added; the paper states neither.
    Equal rewards, or only one, are 0.
    """
    values = np.asarray(rewards, np.float64)
    if len(values) < 2:
        return [0.0] * len(values)
    return ((values - values.mean()) / (values.std(ddof=1) + 1e-6)).tolist()
