"""How Cascade 1 shapes a Bradley-Terry reward before GRPO sees it (arXiv 2512.13607, section 4, RLHF).

The third part, the reward of an answer that leaves English, is `stage.code_switch`: -10, `relative_to="lowest"`.
"""

from collections.abc import Sequence

import numpy as np


def scored_text(text: str) -> str:
    """The part of an answer that is scored: all after `</think>`, or the whole text without one."""
    return text.rpartition("</think>")[2].strip()


def tanh_of_z(rewards: Sequence[float]) -> list[float]:
    """tanh of the z-scores of one prompt's group. It keeps a weak reward model from collapsing the policy."""
    return np.tanh(z_scores(rewards)).tolist()


def z_scores(rewards: Sequence[float]) -> list[float]:
    """(r - mean) / std over one prompt's group.

    As in `group_advantages`, the standard deviation is Bessel-corrected and has 1e-6 added; the paper states neither.
    Equal rewards, or a single one, give 0.
    """
    values = np.asarray(rewards, np.float64)
    if len(values) < 2:
        return [0.0] * len(values)
    return ((values - values.mean()) / (values.std(ddof=1) + 1e-6)).tolist()
