"""Two layouts of the same weights have one digest; the smallest change of one weight gives another."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from cascade_rl.engine.backend.process_groups import initialize_distributed
from cascade_rl.engine.core.settings import OptimizerConfig, ParallelConfig
from cascade_rl.engine.core.train_sequence import TrainSequence
from cascade_rl.engine.train import checkpoint
from cascade_rl.engine.train.losses import SftLoss
from cascade_rl.engine.train.trainer import Trainer
from cascade_rl.engine.train.weights_digest import weights_digest
from tests.engine.models import tiny
from tests.gloo import run_ranks


@pytest.fixture(scope="module")
def hf_config(tmp_path_factory: pytest.TempPathFactory) -> dict:
    folder = tmp_path_factory.mktemp("config")
    tiny.nemotron_h(architectures=["NemotronHForCausalLM"]).save_pretrained(folder)
    return json.loads((folder / "config.json").read_text())


def new_trainer(hf: dict, parallel: ParallelConfig, seed: int) -> Trainer:
    initialize_distributed(parallel, seed)
    return Trainer(hf, parallel, OptimizerConfig(lr=1e-2), total_steps=4, token_budget=64, seed=seed)


def digests(hf: dict, folder: Path) -> list[str]:
    """At the start, after a step, and after one weight more has moved by its last bit."""
    trainer = new_trainer(hf, ParallelConfig(expert=2), seed=1)
    found = [weights_digest(trainer)]
    ids = np.random.default_rng(0).integers(0, tiny.VOCABULARY, (4, 12))
    trainer.update([TrainSequence(row, np.ones(11, np.bool_)) for row in ids], SftLoss(), 0)
    checkpoint.save(trainer, folder)
    found.append(weights_digest(trainer))
    with torch.no_grad():
        norm = next(p for name, p in trainer.module.named_parameters() if name.endswith("final_norm.weight"))
        norm[0] = torch.nextafter(norm[0], torch.tensor(2.0))
    return [*found, weights_digest(trainer)]


def restored(hf: dict, folder: Path, parallel: ParallelConfig) -> str:
    trainer = new_trainer(hf, parallel, seed=2)
    checkpoint.load(trainer, folder)
    return weights_digest(trainer)


def test_a_digest_is_of_the_weights_and_not_of_the_layout(hf_config: dict, tmp_path: Path) -> None:
    one, other = run_ranks(2, digests, hf_config, tmp_path)
    assert one == other
    assert len(set(one)) == 3
    for count, parallel in ((1, ParallelConfig()), (2, ParallelConfig(tensor=2, sequence=True))):
        assert set(run_ranks(count, restored, hf_config, tmp_path, parallel)) == {one[1]}
