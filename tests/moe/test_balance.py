"""Tokens per expert: the worst layer in two numbers; only forward passes that train are counted."""

from pathlib import Path

import numpy as np
import pytest

from cascade_rl.engine.core.settings import ParallelConfig
from cascade_rl.engine.train.losses import SftLoss
from cascade_rl.moe.balance import balance_metrics
from cascade_rl.moe.router import routers
from tests.gloo import run_ranks
from tests.moe.tiny_policy import EXPERTS, MOE_LAYERS, TOPK, save, sequences, start


def test_the_worst_layer_is_reported() -> None:
    tokens = np.array([[4, 4, 4, 4], [10, 6, 0, 0], [12, 2, 1, 1]])
    assert balance_metrics(tokens) == {"expert_load_ratio": 3.0, "experts_unused": 0.5}


def test_a_dense_model_reports_nothing() -> None:
    assert balance_metrics(np.zeros((0, 0), np.int64)) == {}


def chosen(model: Path) -> tuple[list[np.ndarray], np.ndarray, dict[str, float]]:
    """Experts of every real token as the routers chose them in the update, the table, the metrics."""
    policy = start(model, ParallelConfig())
    batch = sequences(routed=False)
    policy.log_probs(batch)
    decisions: list[list[np.ndarray]] = []
    for router in routers(policy.module):
        passes: list[np.ndarray] = []
        router.register_forward_hook(lambda _r, _i, output, passes=passes: passes.append(output[1].numpy()))
        decisions.append(passes)
    metrics = policy.update(batch, SftLoss(), 0)
    return [np.concatenate(passes) for passes in decisions], policy.expert_tokens, metrics


def test_an_update_counts_its_own_tokens(tmp_path: Path) -> None:
    [(decisions, table, metrics)] = run_ranks(1, chosen, save(tmp_path))
    np.testing.assert_array_equal(table, [rows.sum(0) for rows in decisions])
    tokens = sum(len(sequence.loss_mask) for sequence in sequences())
    assert table.sum() == tokens * MOE_LAYERS * TOPK
    assert metrics["expert_load_ratio"] == pytest.approx((table.max(1) / (tokens * TOPK / EXPERTS)).max())
    assert metrics["experts_unused"] == max((layer == 0).sum() for layer in table) / EXPERTS
