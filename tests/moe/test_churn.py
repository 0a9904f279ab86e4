"""Experts that change places: the share of choices that are new for the same token in the same layer."""

import numpy as np
import pytest

from cascade_rl.moe.churn import routing_churn

BEFORE = [np.array([[[0, 1], [2, 3]], [[4, 5], [6, 7]]]), np.array([[[0, 2], [1, 3]]])]  # 2 + 1 tokens, 2 layers, top 2


@pytest.mark.parametrize(
    ("changes", "share"),
    [
        ({}, 0.0),
        ({(0, 0, 0): [1, 0]}, 0.0),  # the same two in another order
        ({(0, 1, 1): [6, 0]}, 1 / 12),
        ({(0, 0, 0): [2, 3], (1, 0, 1): [1, 0]}, 3 / 12),  # experts of another layer do not count
    ],
)
def test_the_share_of_new_choices(changes: dict[tuple[int, int, int], list[int]], share: float) -> None:
    now = [routes.astype(np.int16) for routes in BEFORE]
    for (sequence, token, layer), experts in changes.items():
        now[sequence][token, layer] = experts
    assert routing_churn(BEFORE, now) == pytest.approx(share)
