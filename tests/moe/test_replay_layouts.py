"""In any layout, the routers use exactly the captured experts, and every real token is counted once."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from cascade_rl.engine.core.settings import ParallelConfig
from cascade_rl.engine.train.losses import SftLoss
from cascade_rl.engine.train.trainer import Trainer
from cascade_rl.kernels.linear_logprob import IGNORED
from cascade_rl.moe.router import expert_layer, routers
from tests.gloo import run_ranks
from tests.moe.tiny_policy import EXPERTS, MOE_LAYERS, PATTERN, save, sequences, start

LAYOUTS = {
    "packed": (1, ParallelConfig()),
    "DP2 EP2": (2, ParallelConfig(expert=2)),
    "TP2 PP2 EP2": (4, ParallelConfig(tensor=2, pipeline=2, expert=2, sequence=True)),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("nemotron_h"))


def record(policy: Trainer) -> dict[int, list[Tensor]]:
    """What each of this rank's routers decides from now on: a bool [tokens, experts] for each forward pass."""
    used: dict[int, list[Tensor]] = {}
    for router in routers(policy.module):
        passes = used.setdefault(expert_layer(router, PATTERN), [])
        router.register_forward_hook(lambda _router, _inputs, output, passes=passes: passes.append(output[1]))
    return used


def captured(policy: Trainer, layer: int) -> list[tuple[Tensor, Tensor]]:
    """This rank's tokens in each micro-batch: which are real, and their captured experts as [tokens, experts]."""
    parallel, found = policy.parallel, []
    rank = torch.distributed.get_rank() % parallel.tensor
    for batch in policy.local_batches(sequences()):
        targets, routes = (rows.chunk(parallel.tensor)[rank] for rows in (batch.targets, batch.routes[:, layer]))
        real = targets != IGNORED
        found.append((real, torch.zeros(len(routes), EXPERTS).bool().scatter(1, routes.clamp(min=0), True)))
    return found


def compared(model: Path, parallel: ParallelConfig) -> tuple[int, int, float, np.ndarray]:
    """Router decisions that were compared and those that differed, the replayed fraction, tokens per expert."""
    policy = start(model, parallel)
    used = record(policy)
    policy.log_probs(sequences())
    fraction = policy.update(sequences(), SftLoss(), 0)["replay_fraction"]
    rows = differing = 0
    for layer, passes in used.items():
        for (real, expected), found in zip(captured(policy, layer) * 2, passes, strict=True):
            rows += int(real.sum())
            differing += int((expected != found)[real].any(1).sum())
    return rows, differing, fraction, policy.expert_tokens


@pytest.mark.parametrize("layout", LAYOUTS)
def test_captured_experts_are_used_and_counted_to_the_bit(layout: str, model: Path) -> None:
    world, parallel = LAYOUTS[layout]
    answers = run_ranks(world, compared, model, parallel)
    routes = np.concatenate([sequence.routes for sequence in sequences()])  # [tokens, layers, topk]
    # both the log-probs and the update
    assert sum(rows for rows, *_ in answers) == 2 * len(routes) * MOE_LAYERS
    by_hand = [np.bincount(routes[:, layer].ravel(), minlength=EXPERTS) for layer in range(MOE_LAYERS)]
    for _, differing, fraction, counted in answers:
        assert (differing, fraction) == (0, 1.0)
        np.testing.assert_array_equal(counted, by_hand)
