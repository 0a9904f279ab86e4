"""Adapters of the package peft itself, in both directions (`make test-peft`)."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from cascade_rl.distillation.teachers import Teachers
from cascade_rl.engine.backend.process_groups import initialize_distributed
from cascade_rl.engine.core.settings import LoraConfig, ParallelConfig
from cascade_rl.engine.core.train_sequence import TrainSequence
from cascade_rl.engine.lora.peft import export_adapters
from cascade_rl.engine.train.trainer import Trainer, read_logprob
from tests.engine.models import tiny
from tests.gloo import run_ranks

from .test_adapters import moved, new_trainer

peft = pytest.importorskip("peft", reason="make test-peft installs it")

IDS = np.random.default_rng(0).integers(0, tiny.VOCABULARY, (3, 24))
SEQUENCES = [TrainSequence(ids, np.ones(len(ids) - 1, bool)) for ids in IDS]
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
# transformers 5 has one parameter for all experts of a layer, in which peft sees no matrices
CASES: dict[str, tuple[str, ...]] = {"llama": (), "qwen2": (), "qwen3_moe": ATTENTION}


def exported(base: Path, lora: LoraConfig, out: Path) -> np.ndarray:
    initialize_distributed(ParallelConfig(), seed=1)
    trainer = moved(new_trainer(base, ParallelConfig(), lora=lora))
    assert trainer.lora
    export_adapters(trainer.lora, trainer.hf_config, out, str(base))
    return np.stack(trainer.log_probs(SEQUENCES))


def taught(base: Path, adapter: Path) -> np.ndarray:
    initialize_distributed(ParallelConfig(), seed=1)
    student: Trainer = new_trainer(base, ParallelConfig(), lora=None)
    told = Teachers(student, {"math": adapter}).read(SEQUENCES, ["math"] * len(SEQUENCES), read_logprob)
    return np.stack([values["logprob"] for values in told])


def by_transformers(model: torch.nn.Module) -> np.ndarray:
    ids = torch.from_numpy(IDS)
    with torch.no_grad():
        return model(ids[:, :-1]).logits.log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0].numpy()


Model = tuple[Path, tuple[str, ...]]  # its folder, and targets


@pytest.fixture(params=CASES)
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Model:
    (tmp_path / "base").mkdir()
    tiny.save(getattr(tiny, request.param)(), tmp_path / "base")
    return tmp_path / "base", CASES[request.param]


def test_peft_computes_with_an_export_what_the_trainer_does(
    model: tuple[Path, tuple[str, ...]], tmp_path: Path
) -> None:
    base, targets = model
    expected = run_ranks(1, exported, base, LoraConfig(rank=4, alpha=6.0, targets=targets), tmp_path / "adapter")[0]
    loaded = AutoModelForCausalLM.from_pretrained(base)
    alone = by_transformers(loaded)
    found = by_transformers(peft.PeftModel.from_pretrained(loaded, tmp_path / "adapter"))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.abs(found - alone).max() > 0.1


def test_an_adapter_that_peft_made_teaches(model: Model, tmp_path: Path) -> None:
    base, targets = model
    config = peft.LoraConfig(r=3, lora_alpha=5, target_modules=list(targets or ATTENTION), init_lora_weights=False)
    torch.manual_seed(1)
    made = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(base), config)
    made.save_pretrained(tmp_path / "adapter")
    found = run_ranks(1, taught, base, tmp_path / "adapter")[0]
    np.testing.assert_allclose(found, by_transformers(made), atol=1e-5)
