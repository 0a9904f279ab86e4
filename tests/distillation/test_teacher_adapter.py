"""Teachers that are adapters score as their merged models do, bit for bit, and need memory for one base at most."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from cascade_rl.distillation import teachers as pool
from cascade_rl.distillation.seating import Seating
from cascade_rl.distillation.teachers import Teachers
from cascade_rl.engine.backend.process_groups import initialize_distributed
from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.settings import LoraConfig, OptimizerConfig, ParallelConfig
from cascade_rl.engine.lora.adapters import Lora
from cascade_rl.engine.lora.peft import export_adapters
from cascade_rl.engine.models import export_hf, read_config
from cascade_rl.engine.train.trainer import Trainer
from tests.gloo import run_ranks

from .test_mopd import logprobs_of, make_models, sequences

LORA, EXPERT2, ENOUGH = LoraConfig(rank=2), ParallelConfig(expert=2), 1 << 40
ATTENTION = LoraConfig(rank=3, alpha=8, targets=("q_proj", "k_proj", "v_proj"))
TAUGHT = {"math": LORA, "code": ATTENTION}


@dataclass
class Found:
    """With teachers that are adapters, and with the same ones merged."""

    loaded: list[str]
    bytes: list[int]
    taught: list[list[np.ndarray]]
    student: list[list[np.ndarray]]


def trainer(folder: Path, lora: LoraConfig | None, parallel: ParallelConfig = EXPERT2) -> Trainer:
    config = OptimizerConfig(lr=1e-2)
    made = Trainer(read_config(folder), parallel, config, total_steps=1, token_budget=64, seed=1, lora=lora)
    made.load_hf(folder)
    if made.lora:
        for number, (_, factor) in enumerate(made.lora.factors()):
            generator = torch.Generator().manual_seed(number)
            factor.data += torch.randn(factor.shape, generator=generator) / 20
        made.lora.merge()
    return made


def make_teachers(base: Path, out: Path) -> None:
    """In the name of each domain: an adapter on `base`, and the merged model."""
    initialize_distributed(ParallelConfig(), seed=1)
    for domain, config in TAUGHT.items():
        taught = trainer(base, config, ParallelConfig())
        assert taught.lora
        if domain == "code":
            without_keys(taught.lora)
        export_adapters(taught.lora, taught.hf_config, out / domain / "adapter", str(base))
        export_hf(taught.module, taught.hf_config, out / domain / "merged")
    drop_keys(out / "code/adapter")


def without_keys(lora: Lora) -> None:
    for shard, factor in lora.factors():
        for block in shard.blocks:
            if "k_proj.lora_B" in block.hf_name:
                factor.data[block.shard_index] = 0
    lora.merge()


def drop_keys(adapter: Path) -> None:
    """As PEFT writes an adapter of queries and values alone."""
    weights, config = adapter / "adapter_model.safetensors", adapter / "adapter_config.json"
    save_file({name: factor for name, factor in load_file(weights).items() if ".k_proj." not in name}, weights)
    config.write_text(json.dumps(json.loads(config.read_text()) | {"target_modules": ["q_proj", "v_proj"]}))


def found(student: Path, out: Path, lora: LoraConfig | None) -> Found:
    initialize_distributed(EXPERT2, seed=1)
    policy, loaded, load = trainer(student, lora), list[str](), pool.load_hf

    def recorded(module: Any, path: Path, **more: Any) -> None:
        loaded.append(path.name)
        load(module, path, **more)

    pool.load_hf = recorded  # type: ignore[assignment]
    told, before, sizes = [], policy.log_probs(sequences()), []
    for form in ("adapter", "merged"):
        folders = {domain: out / domain / form for domain in TAUGHT}
        teachers = Teachers(policy, folders, base=student, memory_bytes=ENOUGH)
        sizes.append(teachers.node_bytes // int(os.environ["LOCAL_WORLD_SIZE"]))
        for _ in range(2):
            told.append(logprobs_of(teachers))
    return Found(loaded, sizes, told, [before, policy.log_probs(sequences())])


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The maths model is of another family than the others, without experts, and has more ids."""
    return make_models(tmp_path_factory, other=True)


@pytest.mark.parametrize(
    ("base", "student", "lora"),
    [
        ("student", "student", LORA),
        ("math", "student", LORA),
        pytest.param("student", "student", None, marks=pytest.mark.long),
        pytest.param("student", "code", LORA, marks=pytest.mark.long),
    ],
)
def test_they_score_as_the_merged_models_do(
    models: dict[str, Path], tmp_path: Path, base: str, student: str, lora: LoraConfig | None
) -> None:
    """Of a student with adapters on their base; of one of another family; of one that is trained whole; and of one with
    adapters on another base."""
    run_ranks(1, make_teachers, models[base], tmp_path)
    for rank in run_ranks(2, found, models[student], tmp_path, lora):
        adapters, again, *merged = rank.taught
        for one, *others in zip(adapters, again, *merged, strict=True):
            for other in others:
                np.testing.assert_array_equal(one, other)
        assert np.abs(np.concatenate(adapters) - np.concatenate(rank.student[0])).max() > 0.05
        for before, after in zip(*rank.student, strict=True):
            np.testing.assert_array_equal(before, after)
        shared = base == student and lora is not None
        assert rank.loaded == [*([] if shared else [models[base].name]), "merged", "merged"]
        of_adapters, whole = rank.bytes[0], rank.bytes[1] / 2
        assert (0 if shared else whole) < of_adapters < (0.3 if shared else 1.3) * whole


def refused(base: Path, folder: Path) -> str:
    initialize_distributed(ParallelConfig(), seed=1)
    policy = Trainer(read_config(base), ParallelConfig(), None, total_steps=1, token_budget=64, seed=1)
    with pytest.raises(UserError) as refusal:
        Seating(policy, {"math": folder}, None)
    return str(refusal.value)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"use_dora": True}, "a plain low-rank adapter (use_dora = False), found use_dora = True"),
        ({"base_model_name_or_path": "meta/model"}, "in base_model_name_or_path, found 'meta/model'"),
        ({"target_modules": ["qkv"]}, "expected names among in_proj, out_proj, "),
        ({}, "missing: base_model.model.backbone.layers."),
    ],
)
def test_another_adapter_is_refused(models: dict[str, Path], tmp_path: Path, changed: dict, told: str) -> None:
    plain = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "k_proj", "v_proj"]}
    plain |= {"base_model_name_or_path": str(models["student"])}
    (tmp_path / "adapter_config.json").write_text(json.dumps(plain | changed))
    (tmp_path / "adapter_model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    assert told in run_ranks(1, refused, models["student"], tmp_path)[0]
