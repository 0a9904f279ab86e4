"""A sample as the trainer gets it: its tokens, which of them are trained on, and what the loss reads for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cascade_rl.engine.core.rollouts import Kept

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class TrainSequence:
    """One training sequence of n tokens; position t predicts token t + 1.

    token_ids   int64 [n]
    loss_mask   bool [n - 1]
    per_token   float32 [n - 1, ...] each; a loss names what it reads ("advantage", "rollout_logprob", ...)
    routes      int16 or uint8 [n - 1, moe_layers, topk] or None
    kept        for the [n - 1] positions: log-probs are over these tokens only; None: over the whole vocabulary
    """

    token_ids: np.ndarray
    loss_mask: np.ndarray
    temperature: float = 1.0
    per_token: Mapping[str, np.ndarray] = field(default_factory=dict)
    routes: np.ndarray | None = None
    kept: Kept | None = None
