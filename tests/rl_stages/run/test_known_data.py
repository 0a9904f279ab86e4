"""What a launch knows of its data: unchanged files are not read again, changed ones are."""

import json
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.launchers.local.inputs import check_inputs
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.core import hub
from cascade_rl.rl_stages.run import stage_graph
from cascade_rl.rl_stages.run.known_data import KnownData
from cascade_rl.rl_stages.run.run_folder import INPUTS, RunFolder
from cascade_rl.rl_stages.run.stage_graph import content_hashes
from cascade_rl.rl_stages.tasks import load_tasks as task
from tests.rl_stages.tiny_cascade import CASCADE


def row(question: int) -> Mapping[str, Any]:
    text = f"What is {question} + 4?"
    return {
        "responses_create_params": {"input": [{"role": "user", "content": text}]},
        "agent_ref": {"name": "math"},
        "expected_answer": str(question + 4),
    }


def keep(path: Path, rows: range, age_s: float = 60.0) -> None:
    """A data file that was last changed `age_s` ago."""
    path.write_text("".join(json.dumps(row(number)) + "\n" for number in rows))
    os.utime(path, (time.time() - age_s,) * 2)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    keep(tmp_path / "math.jsonl", range(100, 200))
    return tmp_path / "math.jsonl"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was read: "rows" and "bytes", in order."""
    found: list[str] = []
    census, file_hash = task.census, stage_graph.file_hash
    monkeypatch.setattr(task, "census", lambda *asked: found.append("rows") or census(*asked))
    monkeypatch.setattr(stage_graph, "file_hash", lambda path: found.append("bytes") or file_hash(path))
    return found


def cascade(data: Path) -> Cascade:
    sft, _, math_rl = CASCADE.stages
    again = replace(math_rl, name="again", data=(str(data),))
    return replace(CASCADE, stages=(sft, replace(math_rl, data=(str(data),)), again))


def launch(root: Path, tree: Cascade) -> dict[str, str]:
    """As a launcher begins; returns the stages' hashes."""
    known = KnownData.read(root / INPUTS)
    check_inputs(tree, known)
    with RunFolder.claim(root, tree, known) as (run, _):
        return {stage.config.name: stage.content_hash for stage in run.stages}


def test_a_file_is_read_at_its_first_launch_and_when_it_was_changed(
    data: Path, reads: list[str], tmp_path: Path
) -> None:
    tree, root = cascade(data), tmp_path / "run"
    first = launch(root, tree)
    assert reads == ["rows", "bytes"]  # though two stages name it
    assert launch(root, tree) == first == content_hashes(tree)
    assert reads == ["rows", "bytes", "bytes"]  # the last is content_hashes, which knows nothing
    keep(data, range(200, 300), age_s=30)  # as long as before
    changed = launch(root, tree)
    assert reads[3:] == ["rows", "bytes"]
    assert {name for name in first if changed[name] != first[name]} == {"math_rl", "again"}


def test_a_row_that_is_none_is_found_in_a_file_that_was_known(data: Path, tmp_path: Path) -> None:
    launch(tmp_path / "run", cascade(data))
    keep(data, range(100, 200))
    with data.open("a") as file:
        file.write("{}\n")
    with pytest.raises(UserError, match=r"math\.jsonl:101: expected 'prompt', or NeMo-Gym's 'responses_create_params'"):
        launch(tmp_path / "run", cascade(data))


def test_the_error_of_a_malformed_row_names_the_command_that_leaves_it_out(data: Path) -> None:
    with data.open("a") as file:
        file.write('{"agent_ref": {"name": "math"}}\n')
    hint = rf"math\.jsonl:101: expected .*: `cascade data check {data} --keep FILE\.jsonl` names"
    with pytest.raises(UserError, match=hint):
        check_inputs(cascade(data), KnownData())


def test_a_file_that_was_changed_just_now_is_not_trusted(data: Path, reads: list[str], tmp_path: Path) -> None:
    keep(data, range(100, 200), age_s=-60)  # dated ahead, so that it stays new however slow this machine is
    for _ in range(2):
        launch(tmp_path / "run", cascade(data))
    assert reads == ["rows", "bytes"] * 2


def test_the_files_of_a_folder_are_known_by_name(data: Path, reads: list[str], tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    data.rename(tmp_path / "rows" / "a.jsonl")
    for _ in range(2):
        launch(tmp_path / "run", cascade(tmp_path / "rows"))
    assert reads == ["rows", "bytes"]
    keep(tmp_path / "rows" / "b.jsonl", range(300, 400))
    launch(tmp_path / "run", cascade(tmp_path / "rows"))
    assert reads[2:] == ["rows", "bytes", "bytes"]


def test_what_is_no_longer_asked_for_is_forgotten(data: Path, tmp_path: Path) -> None:
    launch(tmp_path / "run", cascade(data))
    what = "tasks, 0.1 held out, else of math"
    assert json.loads((tmp_path / "run" / INPUTS).read_text())[what].keys() == {str(data)}
    launch(tmp_path / "run", replace(cascade(data), stages=CASCADE.stages))
    assert json.loads((tmp_path / "run" / INPUTS).read_text())[what] == {}


def test_data_of_the_hub_are_read_once_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    for commit in ("one", "one", "two"):
        monkeypatch.setattr(hub, "_commit", lambda repository, revision, commit=commit: commit)
        known = KnownData.read(tmp_path / INPUTS)
        assert known.recall("rows", "hf:openai/gsm8k*0.5", lambda source, commit=commit: read.append(commit) or 7) == 7
        known.write(tmp_path / INPUTS)
    assert read == ["one", "two"]
