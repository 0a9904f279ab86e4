"""Frozen gates stay to the bit, under a distributed optimizer and after a resume; dispatchers give the same numbers."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.settings import ParallelConfig, RouterConfig
from cascade_rl.engine.models import HfImage, write_hf
from cascade_rl.engine.models.build import _router_fields
from cascade_rl.engine.models.hf_image import read_checkpoint
from cascade_rl.engine.train import checkpoint
from cascade_rl.engine.train.losses import SftLoss
from cascade_rl.engine.train.trainer import Trainer
from cascade_rl.rl_stages.config.text import from_plain, override, to_yaml
from tests.gloo import run_ranks
from tests.moe.tiny_policy import save, sequences, start
from tests.rl_stages.tiny_cascade import CASCADE

EP2 = ParallelConfig(expert=2)
POLICIES = {
    "free": RouterConfig(),
    "frozen": RouterConfig(trained=False),
    "only bias": RouterConfig(trained=False, bias_update_rate=1e-3),
}
GATE, BIAS, EXPERT = "gate.weight", "gate.e_score_correction_bias", "experts.0.up_proj.weight"


@dataclass(frozen=True)
class Trained:
    """Exported weights after two updates, metrics of the second, parameters that this rank's optimizer holds."""

    weights: dict[str, Tensor]
    metrics: dict[str, float]
    optimized: set[str]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("nemotron_h"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Where the checkpoint behind the first update of each policy is."""
    return {name: tmp_path_factory.mktemp("checkpoint") for name in POLICIES}


@pytest.fixture(scope="module")
def runs(model: Path, folders: dict[str, Path]) -> dict[str, list[Trained]]:
    return {name: run_ranks(2, two_updates, model, folders[name], router) for name, router in POLICIES.items()}


def update(policy: Trainer, step: int) -> dict[str, float]:
    return policy.update(sequences(routed=False), SftLoss(), step)


def state(policy: Trainer, folder: Path, metrics: dict[str, float]) -> Trained:
    write_hf(policy.module, policy.hf_config, folder / "image")
    image = HfImage.read(folder / "image")
    held = {parameter for part in policy.optimizer.chained_optimizers for parameter in part.model_param_group_index_map}
    optimized = {name for name, parameter in policy.module.named_parameters() if parameter in held}
    return Trained({name: image.view(name).clone() for name in image}, metrics, optimized)


def two_updates(model: Path, folder: Path, router: RouterConfig) -> Trained:
    policy = start(model, EP2, router)
    update(policy, 0)
    checkpoint.save(policy, folder)
    return state(policy, folder, update(policy, 1))


def resumed(model: Path, folder: Path, router: RouterConfig) -> Trained:
    policy = start(model, EP2, router, seed=2)
    with torch.no_grad():
        for tensor in (*policy.module.parameters(), *policy.module.buffers()):
            tensor.zero_()  # what the checkpoint does not bring back stays away
    checkpoint.load(policy, folder)
    return state(policy, folder, update(policy, 1))


def moved(model: Path, after: dict[str, Tensor], suffix: str) -> list[Tensor]:
    """By how much the exported tensors of that name differ from those of the first checkpoint."""
    images = read_checkpoint(model)
    return [after[name] - images[name].view(name) for name in after if name.endswith(suffix)]


@pytest.mark.parametrize("name", ["frozen", "only bias"])
def test_frozen_gates_do_not_move_and_are_exported(name: str, model: Path, runs: dict[str, list[Trained]]) -> None:
    after = runs[name][0].weights
    gates, experts = (moved(model, after, suffix) for suffix in (GATE, EXPERT))
    assert [bool(gate.any()) for gate in gates] == [False, False]
    assert [bool(expert.any()) for expert in experts] == [True, True]
    assert all(gate.any() for gate in moved(model, runs["free"][0].weights, GATE))


def test_the_bias_moves_by_its_rate_or_not_at_all(model: Path, runs: dict[str, list[Trained]]) -> None:
    assert not any(bias.any() for bias in moved(model, runs["frozen"][0].weights, BIAS))
    for name in ("free", "only bias"):
        steps = torch.cat(moved(model, runs[name][0].weights, BIAS)) / 1e-3
        assert (steps - steps.round()).abs().max() < 1e-3
        assert steps.abs().max().round() == 2


def test_the_optimizer_has_no_state_for_frozen_gates(runs: dict[str, list[Trained]]) -> None:
    held = {name: set.union(*(rank.optimized for rank in ranks)) for name, ranks in runs.items()}
    gates = {f"decoder.layers.{layer}.mlp.router.weight" for layer in (1, 4)}
    assert held["free"] - held["frozen"] == gates
    assert held["frozen"] < held["free"]


def test_a_resume_goes_on_with_the_frozen_gates(
    model: Path, folders: dict[str, Path], runs: dict[str, list[Trained]]
) -> None:
    expected = runs["frozen"][0]
    found = run_ranks(2, resumed, model, folders["frozen"], POLICIES["frozen"])[0]
    assert found.metrics == expected.metrics
    for name, tensor in expected.weights.items():
        assert torch.equal(found.weights[name], tensor), name


def loss_and_gradients(
    model: Path, parallel: ParallelConfig, router: RouterConfig
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    policy = start(model, parallel, router)
    metrics = policy.update(sequences(), SftLoss(), 0)
    return metrics, {name: p.main_grad.numpy() for name, p in policy.module.named_parameters()}


@pytest.mark.parametrize("parallel", [EP2, ParallelConfig(tensor=2, expert=2, sequence=True)], ids=["DP2", "TP2"])
def test_dispatchers_give_the_same_loss_and_gradients(model: Path, parallel: ParallelConfig) -> None:
    allgather, alltoall = (
        run_ranks(2, loss_and_gradients, model, parallel, RouterConfig(dispatcher=dispatcher))
        for dispatcher in ("allgather", "alltoall")
    )
    for (metrics, gradients), (expected_metrics, expected) in zip(allgather, alltoall, strict=True):
        assert metrics == pytest.approx(expected_metrics, rel=1e-6)
        assert len(gradients) > 20
        for name, gradient in expected.items():
            assert np.abs(gradients[name] - gradient).max() <= 1e-5 * np.abs(gradient).max(), name


def test_flex_needs_cuda() -> None:
    with pytest.raises(UserError, match="one of alltoall, allgather on this machine, found flex"):
        _router_fields(RouterConfig(dispatcher="flex"), ("alltoall", "allgather"))
    assert _router_fields(RouterConfig(dispatcher="flex"), ("flex",))["moe_token_dispatcher_type"] == "flex"


def test_a_negative_rate_is_refused() -> None:
    with pytest.raises(UserError, match=r"bias_update_rate: expected 0 or more, found -0\.1"):
        RouterConfig(bias_update_rate=-0.1)


def test_a_stage_says_what_trains_in_its_routers() -> None:
    cascade = override(CASCADE, ["if_rl.router.trained=false", "if_rl.router.bias_update_rate=1e-3"])
    assert cascade.stage("if_rl").router == POLICIES["only bias"]
    assert cascade.stage("sft").router == RouterConfig()
    assert from_plain(yaml.safe_load(to_yaml(cascade))) == cascade
