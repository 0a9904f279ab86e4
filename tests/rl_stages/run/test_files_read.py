"""What a stage reads besides its data is known by content: base weights, teachers, the code of a reward."""

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.config.base import BaseModel
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.mopd_stage import MopdStage
from cascade_rl.rl_stages.run import files_read
from cascade_rl.rl_stages.run.files_read import module_file
from cascade_rl.rl_stages.run.known_data import KnownData
from cascade_rl.rl_stages.run.run_folder import INPUTS, RunFolder
from cascade_rl.rl_stages.run.stage_graph import digest
from tests.rl_stages.run.test_run_folder import CASCADE, finish, keep_step

REWARD = "python:kept_rewards.own:score"


def write(path: Path, content: str) -> None:
    """Last changed a minute ago, so that its hash is kept."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    os.utime(path, (time.time() - 60,) * 2)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a base, a teacher and a reward are."""
    for model in ("models/base", "models/teacher"):
        for file in ("config.json", "tokenizer.json", "model.safetensors", "README.md"):
            write(tmp_path / model / file, "one")
    write(tmp_path / "kept_rewards/__init__.py", "raise AssertionError('imported')")
    write(tmp_path / "kept_rewards/own.py", "one")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


def tree() -> Cascade:
    sft, rl = CASCADE.stages
    taught = MopdStage(
        name="mopd",
        domain="math",
        data=("generate:math",),
        steps=2,
        token_budget=512,
        sampling=replace(rl.sampling),  # type: ignore[attr-defined]
        teachers={"math": "models/teacher"},
    )
    rewarded = replace(rl, domain=REWARD)
    evaluation = replace(CASCADE.evaluation, unmeasured=(REWARD,))
    base = BaseModel(hf="models/base")
    return replace(CASCADE, base=base, evaluation=evaluation, stages=(sft, rewarded, taught))


def claimed(root: Path) -> RunFolder:
    with RunFolder.claim(root, tree(), KnownData.read(root / INPUTS)) as (run, _):
        return run


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("models/base/model.safetensors", "01_sft (done): the content of models/base/model.safetensors\n"),
        ("models/base/tokenizer.json", "01_sft (done): the content of models/base/tokenizer.json\n"),
        ("models/teacher/model.safetensors", "03_mopd (at step 1): the content of models/teacher/model.safetensors\n"),
        ("kept_rewards/own.py", "02_rl (at step 1): the content of python:kept_rewards.own\n"),
    ],
)
def test_a_changed_file_is_named_and_asked_about(folder: Path, file: str, said: str) -> None:
    run = claimed(folder / "run")
    finish(run.stage("sft"))
    keep_step(run.stage("rl"), 1)
    keep_step(run.stage("mopd"), 1)
    write(folder / file, "two")
    for _ in range(2):  # the second launch knows the new file
        with pytest.raises(UserError) as refused:
            claimed(run.root)
        assert f"  {said}" in str(refused.value)
    write(folder / file, "one")
    assert claimed(run.root).stage("mopd").last_step() == 1


def test_what_no_stage_reads_may_change(folder: Path) -> None:
    keep_step(claimed(folder / "run").stage("sft"), 1)
    write(folder / "models/base/README.md", "two")
    assert claimed(folder / "run").stage("sft").last_step() == 1


def test_the_hash_of_the_base_is_one_of_its_content(folder: Path) -> None:
    def lineage(name: str) -> str:
        run = claimed(folder / name)
        finish(run.stage("sft"))
        run.record()
        found = json.loads((run.root / "lineage.json").read_text())
        assert found["stages"][0]["parent_hashes"] == [found["base"]] == [RunFolder.open(run.root).base_hash]
        return str(found["base"])

    first = lineage("one")
    assert lineage("two") == first
    write(folder / "models/base/model.safetensors", "two")
    assert lineage("three") != first


def test_a_folder_that_did_not_look_at_its_files_is_read_and_looks_from_now_on(folder: Path) -> None:
    run = claimed(folder / "run")
    finish(run.stage("sft"))
    keep_step(run.stage("rl"), 1)
    parent = None
    for stage in run.stages:
        parent = as_before(stage.root / "hash", parent)
    assert claimed(run.root).stage("rl").last_step() == 1
    assert not (run.root / "superseded").exists()
    write(folder / "models/base/model.safetensors", "two")
    with pytest.raises(UserError, match=r"models/base/model\.safetensors"):
        claimed(run.root)


def as_before(path: Path, parent: str | None) -> str:
    """Makes it a hash file of before, with the `parent` of then; returns its hash."""
    plain = json.loads(path.read_text())
    identity = {key: plain[key] for key in ("settings", "data", "parent", "teachers")}
    identity["parent"] = parent or identity["parent"]
    path.write_text(json.dumps({"hash": digest(identity), "older": None, **identity}))
    return digest(identity)


def test_weights_are_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claimed(folder / "run")
    read: list[str] = []
    hashed: Callable[[Path], str] = files_read.file_hash
    monkeypatch.setattr(files_read, "file_hash", lambda path: read.append(path.name) or hashed(path))
    claimed(folder / "run")
    assert read == ["own.py"]


@pytest.mark.parametrize("module", ["no_such_module", "json.no_such_part", "sys"])
def test_a_module_without_a_file_has_none(module: str) -> None:
    assert module_file(module) is None


def test_a_module_is_found_without_running_its_package(folder: Path) -> None:
    assert module_file("kept_rewards.own") == folder / "kept_rewards/own.py"
    assert module_file("kept_rewards") == folder / "kept_rewards/__init__.py"
