"""How much each token counts in the mean that a step of GRPO minimises."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cascade_rl.engine.core.train_sequence import TrainSequence
from cascade_rl.rl_stages.config.grpo_stage import Normaliser


def with_shares(sequences: Sequence[TrainSequence], normaliser: Normaliser, group: int) -> list[TrainSequence]:
    """Adds per_token "share" [n - 1]. The loss is the sum of share x token loss by the sum of all shares.

    sequences  whole groups of `group` answers to one prompt, in order

    prompt    1 / loss tokens of the prompt's answers, as Eq. 1 of both papers is printed
    sequence  1 / loss tokens of the answer, the "sequence-level loss" of Cascade 1's ablation (arXiv 2512.13607)
    batch     1

    An answer that is not trained on has no loss token. A prompt without any, like an answer without any, is not counted
    in the mean.
    """
    tokens = np.array([sequence.loss_mask.sum() for sequence in sequences])
    if normaliser == "batch":
        counts = np.ones_like(tokens)
    else:
        size = {"prompt": group, "sequence": 1}[normaliser]
        counts = tokens.reshape(-1, size).sum(1).repeat(size)
    shares = [
        np.full(len(sequence.loss_mask), 1 / max(count, 1), np.float32)
        for sequence, count in zip(sequences, counts, strict=True)
    ]
    return [
        replace(sequence, per_token={**sequence.per_token, "share": share})
        for sequence, share in zip(sequences, shares, strict=True)
    ]
