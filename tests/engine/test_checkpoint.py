"""What is saved is what is loaded, to the bit, on every rank: weights, router biases, both moments, step counts."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint import CheckpointException

from cascade_rl.engine import checkpoint
from cascade_rl.engine.backend import initialize_distributed
from cascade_rl.engine.config import OptimizerConfig, ParallelConfig
from cascade_rl.engine.losses import SftLoss
from cascade_rl.engine.sample import Sequence
from cascade_rl.engine.trainer import Trainer
from tests.engine.models import tiny
from tests.gloo import run_ranks

EP2 = ParallelConfig(expert=2)
State = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def hf_config(tmp_path_factory: pytest.TempPathFactory) -> dict:
    folder = tmp_path_factory.mktemp("config")
    tiny.nemotron_h(architectures=["NemotronHForCausalLM"]).save_pretrained(folder)
    return json.loads((folder / "config.json").read_text())


def new_trainer(hf: dict, parallel: ParallelConfig, seed: int) -> Trainer:
    initialize_distributed(parallel, seed)
    return Trainer(hf, parallel, OptimizerConfig(lr=1e-2), total_steps=4, token_budget=64, seed=seed)


def state_of(trainer: Trainer) -> State:
    found = {name: t for name, t in trainer.module.state_dict().items() if torch.is_tensor(t)}
    for part, chained in enumerate(trainer.optimizer.chained_optimizers):
        groups = chained.optimizer.param_groups
        for i, parameter in enumerate(parameter for group in groups for parameter in group["params"]):
            found |= {f"{part}.{i}.{name}": t for name, t in chained.optimizer.state[parameter].items()}
    return {name: tensor.detach().clone() for name, tensor in found.items()}


def save(hf: dict, folder: Path) -> tuple[State, State]:
    trainer = new_trainer(hf, EP2, seed=1)
    start = {name: tensor.clone() for name, tensor in trainer.module.state_dict().items() if torch.is_tensor(tensor)}
    ids = np.random.default_rng(0).integers(0, tiny.VOCABULARY, (4, 12))
    for step in range(2):
        trainer.update([Sequence(row, np.ones(11, np.bool_)) for row in ids], SftLoss(), step)
    checkpoint.save(trainer, folder)
    return start, state_of(trainer)


def load(hf: dict, folder: Path, parallel: ParallelConfig) -> tuple[State, list[int]]:
    trainer = new_trainer(hf, parallel, seed=2)
    checkpoint.load(trainer, folder)
    state = state_of(trainer)
    pointers = [
        entry["step"].data_ptr()
        for chained in trainer.optimizer.chained_optimizers
        for entry in chained.optimizer.state.values()
    ]
    return state, pointers


@pytest.fixture(scope="module")
def saved(hf_config: dict, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[State, State]]]:
    folder = tmp_path_factory.mktemp("checkpoint")
    return folder, run_ranks(2, save, hf_config, folder)


def test_every_rank_gets_back_its_state(hf_config: dict, saved: tuple[Path, list[tuple[State, State]]]) -> None:
    folder, ranks = saved
    for (start, expected), (found, steps) in zip(ranks, run_ranks(2, load, hf_config, folder, EP2), strict=True):
        assert sum("expert_bias" in name for name in found) == 2
        assert {name.rsplit(".", 1)[1] for name in found} >= {"exp_avg", "exp_avg_sq", "step"}
        assert found.keys() == expected.keys()
        assert [name for name, tensor in expected.items() if not torch.equal(found[name], tensor)] == []
        assert [name for name, tensor in start.items() if torch.equal(found[name], tensor)] == []  # it had moved
        assert {float(tensor) for name, tensor in found.items() if name.endswith(".step")} == {2.0}
        assert len(set(steps)) == len(steps) > 1  # a shared counter would count every parameter


def test_another_model_and_another_kind_of_layout_are_refused(
    hf_config: dict, saved: tuple[Path, list[tuple[State, State]]]
) -> None:
    folder, _ = saved
    with pytest.raises(CheckpointException, match=r"shape mismatch .* key decoder\.layers\.1\.mlp\.experts"):
        run_ranks(2, load, hf_config | {"moe_intermediate_size": 16}, folder, EP2)
    with pytest.raises(KeyError, match="optimizer"):
        run_ranks(1, load, hf_config, folder, ParallelConfig())
