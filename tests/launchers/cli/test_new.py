"""`cascade new`: the folder that it writes trains, and its reward is found by every process of the run."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.launchers.cli import main
from cascade_rl.rl_stages.run.run_folder import RunFolder
from tests.launchers.cli.tour import RECORD, tour, write

BIN = Path(sys.executable).parent


def new(*arguments: str) -> int:
    return main._run(["new", *arguments])


def launcher(folder: Path) -> dict:
    """The launcher's names."""
    names: dict = {"__file__": str(folder / "launcher.py"), "__name__": "launcher"}
    exec((folder / "launcher.py").read_text(), names)
    return names


def test_own_model_rows_and_column_are_in_the_launcher(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text('{"max_position_embeddings": 512}')
    (tmp_path / "asked.jsonl").write_text('{"question": "Why?", "answer": "So."}\n')
    assert new("mine", "--model", "model", "--data", "asked.jsonl", "--prompt", "question") == 0
    cascade = launcher(tmp_path / "mine")["CASCADE"]
    (stage,) = cascade.stages
    assert (cascade.name, cascade.base.hf, cascade.rollout.max_model_len) == ("mine", str(tmp_path / "model"), 512)
    assert (stage.data, stage.columns) == ((str(tmp_path / "asked.jsonl"),), {"prompt": "question"})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["taken"], "expected a folder that does not exist; found taken"),
        (["Mine!"], "the folder's name: expected lower case letters, digits and _"),
        (["mine", "--model", "nowhere"], "--model: expected a Hugging Face folder with a config.json; found none"),
        (["mine", "--data", "rows.jsonl"], r"rows.jsonl:1: expected a column 'prompt'; found \['question'\]"),
        (["mine", "--data", "none.jsonl"], "no such file: .*none.jsonl"),
    ],
)
def test_what_cannot_run_is_refused_and_nothing_is_written(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").mkdir()
    (tmp_path / "rows.jsonl").write_text('{"question": "Why?"}\n')
    with pytest.raises(UserError, match=message):
        new(*arguments)
    assert not (tmp_path / "mine").exists()


def test_a_dry_run_shows_the_files_and_writes_none(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert new("mine", "--dry") == 0
    assert "mine/launcher.py:" in capsys.readouterr().out
    assert not (tmp_path / "mine").exists()


@pytest.mark.engine
def test_the_folder_tests_its_reward_and_trains(tmp_path):
    """As a user does, in a folder that is nowhere on the module path."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*command: str) -> str:
        return subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True).stdout

    run(str(BIN / "cascade"), "new", "mine")
    assert "1 passed" in run(str(BIN / "pytest"), "-q", "mine")
    run(str(BIN / "nemo-run"), "mine/launcher.py", "rl.steps=2", "rl.prompts_per_step=2", "rl.checkpoint_every=2")
    (stage,) = RunFolder.open(tmp_path / "runs/mine").stages
    assert [row["step"] for row in stage.metrics.rows()] == [1, 2]
    assert stage.scores()["after"].keys() == {"python:reward:score"}
    samples = [row for file in sorted((stage.root / "rollouts").iterdir()) for row in pq.read_table(file).to_pylist()]
    assert len(samples) == 2 * 2 * 8
    for row in samples:
        digits = sum(map(str.isdigit, row["text"])) / max(len(row["text"]), 1)
        assert row["reward"] == pytest.approx(digits if row["finish"] == "stop" else 0.0), row
    check_the_tour(tour(tmp_path / "mine/rows.jsonl", tmp_path / "runs/mine"))


def check_the_tour(found: dict[str, Any]) -> None:
    """docs/tour.md tells of this run. UPDATE_GOLDEN=1 records it; then tests/docs/test_tour.py says what to write."""
    if os.environ.get("UPDATE_GOLDEN"):
        write(found)
    recorded = json.loads(RECORD.read_text())
    assert found.pop("logprobs") == pytest.approx(recorded.pop("logprobs"), abs=1e-3)
    assert found.pop("step") == pytest.approx(recorded.pop("step"), rel=0.01)
    assert max(*found.pop("gaps").values(), *recorded.pop("gaps").values()) < 1e-5
    assert found == recorded
