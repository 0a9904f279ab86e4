"""Recompute, overlap and offload: the loss and the gradients of an update are those without, and so are the routes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from megatron.core import parallel_state

from cascade_rl.engine.backend.process_groups import cut_ranks, initialize_distributed
from cascade_rl.engine.core.passed_fields import MegatronFields
from cascade_rl.engine.core.settings import ParallelConfig
from cascade_rl.engine.core.train_sequence import TrainSequence
from cascade_rl.engine.models import read_config
from cascade_rl.engine.train.losses import SftLoss
from cascade_rl.engine.train.trainer import Trainer
from tests.engine.models import tiny
from tests.engine.train.test_invariance import EXPERTS, OPTIMIZER, TP2, gaps, in_hf_names, sequence, whole_gradients
from tests.gloo import run_ranks

PP2 = ParallelConfig(pipeline=2)
LAYOUTS = {
    "1": (1, ParallelConfig()),
    "DP2": (2, ParallelConfig()),
    "PP2": (2, PP2),
    "PP2 VP2": (2, ParallelConfig(pipeline=2, virtual_pipeline=2)),
    "TP2 SP EP2": (2, ParallelConfig(**TP2, expert=2)),
}
PARTS = ("core_attn", "layernorm", "mlp", "moe", "moe_act", "shared_experts")
OVERLAP = MegatronFields(overlap_grad_reduce=True, bucket_size=2000)
WAYS: dict[str, dict] = {
    "full": {"recompute": ("full",)},
    "every second layer's input": {"recompute": ("full",), "megatron": MegatronFields(recompute_num_layers=2)},
    "the first layer": {
        "recompute": ("full",),
        "megatron": MegatronFields(recompute_method="block", recompute_num_layers=1),
    },
    "experts": {"recompute": ("moe",)},
    "experts, outputs freed": {
        "recompute": ("moe",),
        "megatron": MegatronFields(deallocate_pipeline_outputs=True),
    },
    "shared experts beside the others": {"megatron": MegatronFields(moe_shared_expert_overlap=True)},
    "all parts": {"recompute": PARTS},
    "gradients overlap": {"megatron": OVERLAP},
    "weights overlap": {"megatron": replace(OVERLAP, overlap_param_gather=True), "recompute": ("full",)},
}
MATRIX = {
    "1": ["full", "every second layer's input", "experts", "all parts", "gradients overlap"],
    "DP2": ["gradients overlap", "weights overlap"],
    "PP2": ["full", "the first layer", "experts, outputs freed", "weights overlap"],
    "PP2 VP2": ["full", "gradients overlap"],
    "TP2 SP EP2": ["full", "all parts", "weights overlap", "shared experts beside the others"],
}


def batch(*, routed: bool) -> list[TrainSequence]:
    """Of two parts, in which several micro-batches have equally many tokens, and none the same routes."""
    rng = np.random.default_rng(5)
    drawn = [sequence(rng, EXPERTS["nemotron_h"], length) for length in (17, 25, 25, 25, 17, 14) * 2]
    return drawn if routed else [replace(s, routes=None) for s in drawn]


def answer(model: Path, parallel: ParallelConfig, routed: bool) -> tuple[dict, dict, np.ndarray, np.ndarray]:
    """Metrics and tokens per expert of an update in two parts; gradients of the first; log-probs after it."""
    policy = Trainer(read_config(model), parallel, OPTIMIZER, total_steps=4, token_budget=32, seed=1)
    policy.load_hf(model)
    buckets = sum(len(buffer.buckets) for ddp in policy.ddp for buffer in ddp.buffers)
    assert (buckets > len(policy.ddp)) == policy.ddp_config.overlap_grad_reduce
    step = policy.optimizer.step
    gradients = {}

    def capture() -> tuple[bool, float, int]:
        if not gradients:
            gradients.update(in_hf_names(policy, whole_gradients(policy)))
        return step()

    policy.optimizer.step = capture
    metrics = policy.update(batch(routed=routed), SftLoss(), 0, updates=2)
    return metrics, gradients, policy.expert_tokens, np.concatenate(policy.log_probs(batch(routed=routed)))


def compared(model: Path, layout: str) -> dict[tuple[str, bool], tuple]:
    """For each way, with and without routes: metrics and those without it, the largest gap of a gradient, whether the
    experts got the same tokens, the largest gap of a log-prob after the step."""
    _, parallel = LAYOUTS[layout]
    initialize_distributed(parallel, seed=1)
    found = {}
    for routed in (True, False):
        metrics, gradients, tokens, after = answer(model, parallel, routed)
        for way in MATRIX[layout]:
            parallel_state.destroy_model_parallel()
            cut_ranks(parallel)
            here = answer(model, replace(parallel, **WAYS[way]), routed)
            same_tokens = np.array_equal(here[2], tokens)
            gap = max(gaps(here[1], gradients))
            found[way, routed] = here[0], metrics, gap, same_tokens, float(np.abs(here[3] - after).max())
    return found


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "nemotron_h"
    tiny.save(tiny.nemotron_h(), folder)
    return folder


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_update_is_the_same(layout: str, model: Path) -> None:
    for rank in run_ranks(LAYOUTS[layout][0], compared, model, layout):
        for (way, routed), (metrics, expected, gap, same_tokens, after) in rank.items():
            assert gap < (1e-5, ""), (way, routed)
            assert metrics == pytest.approx(expected, rel=1e-5, abs=1e-7), (way, routed)
            assert metrics["replay_fraction"] == float(routed), way
            assert same_tokens, (way, routed)
            assert after < 1e-4, (way, routed)
