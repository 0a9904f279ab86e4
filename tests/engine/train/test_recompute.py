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
from tests.engine.train.test_invariance import EXPERTS, OPTIMIZER, TP2, in_hf_names, sequence, whole_gradients
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
    "the first layer": {
        "recompute": ("full",),
        "megatron": MegatronFields(recompute_method="block", recompute_num_layers=1),
    },
    "experts, outputs freed": {
        "recompute": ("moe",),
        "megatron": MegatronFields(deallocate_pipeline_outputs=True),
    },
    "shared experts beside the others": {"megatron": MegatronFields(moe_shared_expert_overlap=True)},
    "all parts": {"recompute": PARTS},
    "gradients overlap": {"megatron": OVERLAP},
    "weights overlap": {"megatron": replace(OVERLAP, overlap_param_gather=True), "recompute": ("full",)},
}
LONG = pytest.mark.long
CASES = [
    ("1", ["full", "all parts"]),
    ("DP2", ["weights overlap"]),
    ("PP2", ["full", "experts, outputs freed"]),
    ("TP2 SP EP2", ["all parts"]),
    pytest.param("1", ["gradients overlap"], marks=LONG),
    pytest.param("DP2", ["gradients overlap"], marks=LONG),
    pytest.param("PP2", ["the first layer", "weights overlap"], marks=LONG),
    pytest.param("PP2 VP2", ["full", "gradients overlap"], marks=LONG),
    pytest.param("TP2 SP EP2", ["full", "weights overlap", "shared experts beside the others"], marks=LONG),
]


def batch(*, routed: bool) -> list[TrainSequence]:
    """Of two parts, in which several micro-batches have equally many tokens, and none the same routes."""
    rng = np.random.default_rng(5)
    drawn = [sequence(rng, EXPERTS["nemotron_h"], length) for length in (17, 25, 25, 25, 17, 14) * 2]
    return drawn if routed else [replace(s, routes=None) for s in drawn]


def answer(model: Path, parallel: ParallelConfig, routed: bool) -> tuple[dict, dict, np.ndarray, np.ndarray]:
    """Metrics and tokens per expert of an update in two parts; gradients of the first; log-probs after it."""
    policy = Trainer(read_config(model), parallel, OPTIMIZER, total_steps=4, token_budget=32, seed=1)
    policy.load_hf(model)
    if parallel_state.get_pipeline_model_parallel_rank() == 0:  # the others have one bucket, as Megatron makes it
        assert (len(policy.ddp[0].buffers[0].buckets) > 1) == policy.ddp_config.overlap_grad_reduce
    step = policy.optimizer.step
    gradients = {}

    def capture() -> tuple[bool, float, int]:
        if not gradients:
            gradients.update(in_hf_names(policy, whole_gradients(policy)))
        return step()

    policy.optimizer.step = capture
    metrics = policy.update(batch(routed=routed), SftLoss(), 0, updates=2)
    return metrics, gradients, policy.expert_tokens, np.concatenate(policy.log_probs(batch(routed=routed)))


def gap(found: np.ndarray, expected: np.ndarray) -> float:
    """Norm of the difference by the norm, of what this rank holds. An expert without tokens has no gradient."""
    difference, whole = (np.linalg.norm(np.nan_to_num(tensor)) for tensor in (found - expected, expected))
    return float(difference / max(whole, 1e-12))


def compared(model: Path, layout: str, ways: list[str]) -> dict[tuple[str, bool], tuple]:
    """For each way with routes, and for the first without: metrics and those of no such way, the largest gap of a
    gradient, whether the experts got the same tokens, the largest gap of a log-prob after the step."""
    _, parallel = LAYOUTS[layout]
    initialize_distributed(parallel, seed=1)
    found = {}
    for routed in (True, False):
        metrics, gradients, tokens, after = answer(model, parallel, routed)
        for way in ways if routed else ways[:1]:
            parallel_state.destroy_model_parallel()
            cut_ranks(parallel)
            here = answer(model, replace(parallel, **WAYS[way]), routed)
            same_tokens = np.array_equal(here[2], tokens)
            worst = max((gap(tensor, gradients[name]), name) for name, tensor in here[1].items())
            found[way, routed] = here[0], metrics, worst, same_tokens, float(np.abs(here[3] - after).max())
    return found


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "nemotron_h"
    tiny.save(tiny.nemotron_h(), folder)
    return folder


@pytest.mark.long
def test_an_update_of_a_model_with_latents_is_the_same(tmp_path: Path) -> None:
    tiny.save(tiny.deepseek_v3(), tmp_path / "deepseek_v3")
    assert_same("TP2 SP EP2", ["full", "all parts"], tmp_path / "deepseek_v3")


@pytest.mark.parametrize(("layout", "ways"), CASES)
def test_an_update_is_the_same(layout: str, ways: list[str], model: Path) -> None:
    assert_same(layout, ways, model)


def assert_same(layout: str, ways: list[str], model: Path) -> None:
    for rank in run_ranks(LAYOUTS[layout][0], compared, model, layout, ways):
        for (way, routed), (metrics, expected, worst, same_tokens, after) in rank.items():
            assert worst < (1e-5, ""), (way, routed)
            assert metrics == pytest.approx(expected, rel=1e-5, abs=1e-7), (way, routed)
            assert metrics["replay_fraction"] == float(routed), way
            assert same_tokens, (way, routed)
            assert after < 1e-4, (way, routed)
