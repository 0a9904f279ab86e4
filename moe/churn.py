"""How many tokens the router sends elsewhere than before an update, measured on the same tokens."""

from collections.abc import Sequence

import numpy as np


def routing_churn(before: Sequence[np.ndarray], now: Sequence[np.ndarray]) -> float:
    """Share of the experts chosen `now` that were not chosen `before` for the same token in the same layer.

    Both: for each sequence, integers [tokens, expert layers, topk]. The order of a token's experts does not count.
    """
    chosen, earlier = np.concatenate(now), np.concatenate(before)
    stayed = (chosen[..., :, None] == earlier[..., None, :]).any(-1)  # [tokens, expert layers, topk]
    return float(1 - stayed.mean())
