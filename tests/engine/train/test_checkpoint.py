"""What is saved is what is loaded, to the bit, on every rank: weights, router biases, both moments, step counts."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing

from cascade_rl.engine.backend.process_groups import initialize_distributed
from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.settings import OptimizerConfig, ParallelConfig
from cascade_rl.engine.core.train_sequence import TrainSequence
from cascade_rl.engine.train import checkpoint
from cascade_rl.engine.train.losses import SftLoss
from cascade_rl.engine.train.trainer import Trainer
from tests.engine.models import tiny
from tests.gloo import run_ranks
from tests.until import LIMIT_S

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
        trainer.update([TrainSequence(row, np.ones(11, np.bool_)) for row in ids], SftLoss(), step)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("all_gather", "all_gather_into_tensor", "gather"):
            patch.setattr(dist, name, _refused)
        checkpoint.save(trainer, folder)
    return start, state_of(trainer)


def _refused(*_: Any, **__: Any) -> None:
    raise AssertionError("a checkpoint gathered tensors")


def save_as_megatron(hf: dict, folder: Path) -> State:
    """As a version of Cascade that gathered the state of the optimizer."""
    trainer = new_trainer(hf, EP2, seed=1)
    ids = np.random.default_rng(0).integers(0, tiny.VOCABULARY, (4, 12))
    trainer.update([TrainSequence(row, np.ones(11, np.bool_)) for row in ids], SftLoss(), 0)
    model = trainer.module.sharded_state_dict(metadata={"singleton_local_shards": False})
    parts = trainer.optimizer.chained_optimizers
    gathered = {i: part.sharded_param_state_fully_reshardable(model, False, {}) for i, part in enumerate(parts)}
    state = {"model": model, "moments": gathered, "updates": 1}
    dist_checkpointing.save(state, str(folder), content_metadata={"model": checkpoint._identity(hf)})
    return state_of(trainer)


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


def test_what_megatron_gathered_is_read(hf_config: dict, tmp_path: Path) -> None:
    expected = run_ranks(2, save_as_megatron, hf_config, tmp_path)
    for written, (found, _) in zip(expected, run_ranks(2, load, hf_config, tmp_path, EP2), strict=True):
        assert [name for name, tensor in written.items() if not torch.equal(found[name], tensor)] == []


BATCH_SEED = 5
LAYOUTS = {
    "one rank": (1, ParallelConfig()),
    "DP2": (2, ParallelConfig()),
    "TP2": (2, ParallelConfig(tensor=2, sequence=True)),
    "PP2": (2, ParallelConfig(pipeline=2)),
    "EP2": (2, EP2),
    "TP2 PP2 ETP1 EP2": (4, ParallelConfig(tensor=2, pipeline=2, expert=2, sequence=True)),
}


def next_step(hf: dict, folder: Path, parallel: ParallelConfig) -> tuple[dict[str, float], list[np.ndarray]]:
    """Metrics of the update after the checkpoint, and log-probs of the weights that it made."""
    trainer = new_trainer(hf, parallel, seed=3)
    checkpoint.load(trainer, folder)
    ids = np.random.default_rng(BATCH_SEED).integers(0, tiny.VOCABULARY, (4, 12))
    batch = [TrainSequence(row, np.ones(11, np.bool_)) for row in ids]
    metrics = trainer.update(batch, SftLoss(), step=2)
    return metrics, trainer.log_probs(batch)


@pytest.fixture(scope="module")
def expected_step(
    hf_config: dict, saved: tuple[Path, list[tuple[State, State]]]
) -> tuple[dict[str, float], list[np.ndarray]]:
    return run_ranks(1, next_step, hf_config, saved[0], ParallelConfig())[0]


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "one rank"])
def test_any_layout_goes_on_with_the_same_step(
    hf_config: dict,
    saved: tuple[Path, list[tuple[State, State]]],
    expected_step: tuple[dict[str, float], list[np.ndarray]],
    layout: str,
) -> None:
    """Also between EP = 1 and EP > 1, which Megatron's own optimizer state cannot."""
    ranks, parallel = LAYOUTS[layout]
    metrics, logprobs = run_ranks(ranks, next_step, hf_config, saved[0], parallel)[0]
    for name in ("loss", "grad_norm"):
        assert metrics[name] == pytest.approx(expected_step[0][name], rel=1e-5)
    np.testing.assert_allclose(np.stack(logprobs), np.stack(expected_step[1]), atol=1e-4)


HALF: dict[str, Any] = {"precision": "bfloat16"}


def undisturbed(hf: dict, folder: Path) -> tuple[dict[str, float], list[np.ndarray]]:
    """In bfloat16, two updates, a checkpoint, and the update after it."""
    trainer = new_trainer(hf, replace(EP2, **HALF), seed=1)
    ids = np.random.default_rng(BATCH_SEED).integers(0, tiny.VOCABULARY, (4, 12))
    batch = [TrainSequence(row, np.ones(11, np.bool_)) for row in ids]
    for step in range(2):
        trainer.update(batch, SftLoss(), step)
    checkpoint.save(trainer, folder)
    return trainer.update(batch, SftLoss(), 2), trainer.log_probs(batch)


@pytest.fixture(scope="module")
def in_bfloat16(
    hf_config: dict, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, tuple[dict[str, float], list[np.ndarray]]]:
    folder = tmp_path_factory.mktemp("bfloat16")
    return folder, run_ranks(2, undisturbed, hf_config, folder)[0]


def test_a_run_in_bfloat16_goes_on_to_the_bit(
    hf_config: dict, in_bfloat16: tuple[Path, tuple[dict[str, float], list[np.ndarray]]]
) -> None:
    """The checkpoint has the float32 weights of Adam, of which those of the model are a rounding."""
    folder, (expected, logprobs) = in_bfloat16
    metrics, found = run_ranks(2, next_step, hf_config, folder, replace(EP2, **HALF))[0]
    assert metrics == expected
    assert np.array_equal(np.stack(found), np.stack(logprobs))


@pytest.mark.parametrize(
    "layout", [pytest.param(name, marks=() if name == "TP2" else pytest.mark.long) for name in LAYOUTS if name != "EP2"]
)
def test_any_layout_goes_on_with_a_run_in_bfloat16(
    hf_config: dict, in_bfloat16: tuple[Path, tuple[dict[str, float], list[np.ndarray]]], layout: str
) -> None:
    folder, (expected, logprobs) = in_bfloat16
    ranks, parallel = LAYOUTS[layout]
    metrics, found = run_ranks(ranks, next_step, hf_config, folder, replace(parallel, **HALF))[0]
    for name in ("loss", "grad_norm"):
        assert metrics[name] == pytest.approx(expected[name], rel=1e-2)
    np.testing.assert_allclose(np.stack(found), np.stack(logprobs), atol=0.1)


def without_moments(hf: dict, folder: Path) -> list[np.ndarray]:
    trainer = new_trainer(hf, ParallelConfig(), seed=3)
    checkpoint.load(trainer, folder)
    for part in trainer.optimizer.chained_optimizers:
        for moments in part.optimizer.state.values():
            moments["exp_avg"].zero_()
    ids = np.random.default_rng(BATCH_SEED).integers(0, tiny.VOCABULARY, (4, 12))
    batch = [TrainSequence(row, np.ones(11, np.bool_)) for row in ids]
    trainer.update(batch, SftLoss(), step=2)
    return trainer.log_probs(batch)


def test_the_moments_matter_to_that_step(
    hf_config: dict,
    saved: tuple[Path, list[tuple[State, State]]],
    expected_step: tuple[dict[str, float], list[np.ndarray]],
) -> None:
    found = run_ranks(1, without_moments, hf_config, saved[0])[0]
    assert np.abs(np.stack(found) - np.stack(expected_step[1])).max() > 1e-2


def write_behind(hf: dict, folder: Path) -> tuple[State, list[str], State]:
    trainer = new_trainer(hf, EP2, seed=1)
    ids = np.random.default_rng(0).integers(0, tiny.VOCABULARY, (4, 12))
    batch = [TrainSequence(row, np.ones(11, np.bool_)) for row in ids]
    trainer.update(batch, SftLoss(), 0)
    at_start, order = state_of(trainer), []
    writer = checkpoint.CheckpointWriter()
    writer.poll()
    writer.start(trainer, folder, lambda: order.append("written"))
    order.append("training goes on")
    trainer.update(batch, SftLoss(), 1)
    writer.finish()
    writer.finish()
    checkpoint.load(trainer, folder)
    return at_start, order, state_of(trainer)


def save_at_once(hf: dict, folder: Path) -> State:
    trainer = new_trainer(hf, ParallelConfig(), seed=1)
    checkpoint.save(trainer, folder)
    return state_of(trainer)


def test_a_trainer_that_has_not_stepped_is_saved_too(hf_config: dict, tmp_path: Path) -> None:
    (expected,) = run_ranks(1, save_at_once, hf_config, tmp_path)
    ((found, _),) = run_ranks(1, load, hf_config, tmp_path, ParallelConfig())
    assert found.keys() == expected.keys()
    assert [name for name, tensor in expected.items() if not torch.equal(found[name], tensor)] == []


def test_a_checkpoint_written_behind_the_training_holds_the_state_at_its_start(hf_config: dict, tmp_path: Path) -> None:
    for at_start, order, restored in run_ranks(2, write_behind, hf_config, tmp_path):
        assert order == ["training goes on", "written"]
        assert [name for name, tensor in at_start.items() if not torch.equal(restored[name], tensor)] == []


def test_another_model_is_refused(hf_config: dict, saved: tuple[Path, list[tuple[State, State]]]) -> None:
    with pytest.raises(UserError, match=r"another model: moe_intermediate_size = 32 \(expected 16\)"):
        run_ranks(1, load, hf_config | {"moe_intermediate_size": 16}, saved[0], ParallelConfig())


RANK = """
import psutil
from cascade_rl.engine.train.checkpoint import CheckpointWriter

if __name__ == "__main__":
    writer = CheckpointWriter()
    print(*(child.pid for child in psutil.Process().children()), flush=True)
    input()
"""


def test_nothing_outlives_a_killed_rank(tmp_path: Path) -> None:
    """Of the process through which writers report, which Megatron would leave behind."""
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    rank = subprocess.Popen([sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert rank.stdout is not None
    children = [psutil.Process(int(pid)) for pid in rank.stdout.readline().split()]
    assert len(children) >= 1
    rank.kill()
    rank.communicate()
    _, alive = psutil.wait_procs(children, timeout=LIMIT_S)
    assert alive == []
