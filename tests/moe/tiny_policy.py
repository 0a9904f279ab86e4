"""A tiny NemotronH policy and a batch whose captured experts are random: for tests that update it on gloo ranks."""

from pathlib import Path

import numpy as np

from cascade_rl.engine.backend.process_groups import initialize_distributed
from cascade_rl.engine.core.settings import DEFAULT_ROUTER, OptimizerConfig, ParallelConfig, RouterConfig
from cascade_rl.engine.core.train_sequence import TrainSequence
from cascade_rl.engine.models import family_of, read_config
from cascade_rl.engine.train.trainer import Trainer
from tests.engine.models import tiny

MOE_LAYERS, EXPERTS, TOPK = 2, 8, 2
PATTERN = "MEM*E-"
TOKEN_BUDGET = 64
# at a small eps Adam turns the rounding of near-zero gradients into full steps
OPTIMIZER = OptimizerConfig(lr=1e-2, eps=1e-4)


def save(folder: Path) -> Path:
    tiny.save(tiny.nemotron_h(), folder)
    assert family_of(config := read_config(folder)).pattern(config) == PATTERN
    return folder


def start(model: Path, parallel: ParallelConfig, router: RouterConfig = DEFAULT_ROUTER, seed: int = 1) -> Trainer:
    initialize_distributed(parallel, seed=seed)
    config = read_config(model)
    policy = Trainer(config, parallel, OPTIMIZER, total_steps=4, token_budget=TOKEN_BUDGET, seed=seed, router=router)
    policy.load_hf(model)
    return policy


def sequences(*, routed: bool = True) -> list[TrainSequence]:
    rng = np.random.default_rng(3)
    return [_sequence(rng, int(length), routed) for length in rng.integers(4, 30, 12)]


def _sequence(rng: np.random.Generator, length: int, routed: bool) -> TrainSequence:
    routes = [rng.permutation(EXPERTS)[:TOPK] for _ in range((length - 1) * MOE_LAYERS)]
    return TrainSequence(
        token_ids=rng.integers(0, tiny.VOCABULARY, length),
        loss_mask=rng.random(length - 1) < 0.7,
        temperature=1.0,
        routes=np.array(routes, np.int16).reshape(length - 1, MOE_LAYERS, TOPK) if routed else None,
    )
