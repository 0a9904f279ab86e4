"""The stage on the real stack, Megatron-Core and vLLM, as a person runs it: `nemo-run LAUNCHER`. CI has the stage in
the rehearsal of the 30B launcher."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from cascade_rl.engine.backend.process_groups import initialize_distributed
from cascade_rl.engine.core.settings import ParallelConfig
from cascade_rl.rl_stages import base_model
from cascade_rl.rl_stages.run.run_folder import RunFolder, StageFolder
from cascade_rl.rl_stages.run.sample_record import read_samples
from tests.gloo import run_ranks
from tests.rl_stages.launched import Launched
from tests.rl_stages.tiny_cascade import CASCADE

pytestmark = pytest.mark.long
TINY = Path(__file__).with_name("tiny_mopd.py")
TEACHERS = {"instruction_following": "./second", "math": "./first"}


def make_first(folder: Path) -> None:
    initialize_distributed(ParallelConfig(), seed=1)
    base_model.ready(RunFolder(folder, CASCADE), ParallelConfig()).rename(folder / "first")


def make_second(folder: Path) -> None:
    """The same model, each weight a little off."""
    shutil.copytree(folder / "first", folder / "second")
    weights, noise = folder / "second/model.safetensors", torch.Generator().manual_seed(1)
    off = {name: w + 0.05 * torch.randn(w.shape, generator=noise) for name, w in load_file(weights).items()}
    save_file(off, weights, metadata={"format": "pt"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the launcher was called."""
    folder = tmp_path_factory.mktemp("mopd")
    run_ranks(1, make_first, folder)
    make_second(folder)
    code, out, err = Launched(folder, TINY).finish()
    assert code == 0, out + err
    return folder


@pytest.fixture
def run(folder: Path) -> RunFolder:
    return RunFolder.open(folder / "runs/tiny")


@pytest.fixture
def mopd(run: RunFolder) -> StageFolder:
    return run.stage("mopd")


def samples(stage: StageFolder, step: int) -> list[dict]:
    return read_samples(stage.rollouts(step))


def test_the_student_starts_as_one_teacher_and_comes_closer_to_the_other(mopd: StageFolder) -> None:
    first, *_, last = mopd.metrics.rows()
    assert abs(first["reverse_kl_math"]) < 1e-5
    assert first["reverse_kl_instruction_following"] > 0.05
    assert last["reverse_kl_instruction_following"] < 0.9 * first["reverse_kl_instruction_following"]


def test_every_step_agrees_with_the_sampler(mopd: StageFolder) -> None:
    for row in mopd.metrics.rows():
        assert 1 <= row["tme"] <= 1.001
        assert row["importance_weight"] == pytest.approx(1, abs=1e-3)
        assert row["importance_dropped"] == 0
        assert row["replay_fraction"] == 1
        assert row["probe_gap"] <= 2e-3


def test_metrics_are_those_of_the_samples(mopd: StageFolder) -> None:
    for row in mopd.metrics.rows():
        rows = samples(mopd, row["step"])
        assert len(rows) == 32
        teacher, student = ([np.array(each[f"{who}_logprobs"]) for each in rows] for who in ("teacher", "train"))
        advantages = [(of - own).mean() for of, own in zip(teacher, student, strict=True)]
        losses = [-((of - own) * own).mean() for of, own in zip(teacher, student, strict=True)]
        assert [each["advantage"] for each in rows] == pytest.approx(advantages, abs=1e-5)
        assert row["reverse_kl"] == pytest.approx(-np.mean(advantages), abs=1e-5)
        assert row["loss"] == pytest.approx(np.mean(losses), abs=2e-3)
        for domain in TEACHERS:
            own = [-a for a, each in zip(advantages, rows, strict=True) if each["domain"] == domain]
            assert row[f"reverse_kl_{domain}"] == pytest.approx(np.mean(own), abs=1e-5)


def test_transformers_gives_a_teachers_log_probs(folder: Path, mopd: StageFolder) -> None:
    models = {domain: AutoModelForCausalLM.from_pretrained(folder / name) for domain, name in TEACHERS.items()}
    for row in samples(mopd, 3)[::8]:
        ids, answer = row["prompt_ids"] + row["token_ids"], len(row["prompt_ids"])
        with torch.no_grad():
            logits = models[row["domain"]](torch.tensor([ids])).logits[0, answer - 1 : -1]
        logprobs = logits.log_softmax(-1)[range(len(ids) - answer), row["token_ids"]].numpy()
        np.testing.assert_allclose(logprobs, row["teacher_logprobs"], atol=2e-4)


def test_lineage_tells_the_teachers(run: RunFolder) -> None:
    stages = json.loads((run.root / "lineage.json").read_text())["stages"]
    assert [stage["teachers"] for stage in stages] == [TEACHERS]


@pytest.mark.long
def test_two_ranks_arrive_where_one_does(folder: Path, mopd: StageFolder, tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).symlink_to(folder / name)
    code, out, err = Launched(tmp_path, TINY, "nproc=2", "parallel.expert=2").finish()
    assert code == 0, out + err
    found = RunFolder.open(tmp_path / "runs/tiny").stage("mopd")
    assert [row["token_ids"] for row in samples(found, 1)] == [row["token_ids"] for row in samples(mopd, 1)]
    for two, one in zip(found.metrics.rows()[:2], mopd.metrics.rows(), strict=False):
        for name in ("loss", "reverse_kl", "grad_norm", "tme"):
            assert two[name] == pytest.approx(one[name], rel=2e-3, abs=1e-5)
