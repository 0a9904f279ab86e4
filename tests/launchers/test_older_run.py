"""`older_run/`, a run folder as commit 784e620 wrote it, before hashes left defaults out: `older_launcher.py` there, in
its last stage killed after step 3 of 6, and under superseded/ that stage as it was finished with `mopd.steps=2`."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cascade_rl.rl_stages.config.text import override
from cascade_rl.rl_stages.run.run_folder import RunFolder
from cascade_rl.rl_stages.run.stage_graph import content_hashes
from tests.launchers.local.test_run_local import nemo_run
from tests.until import LIMIT_S

HERE = Path(__file__).parent
LAUNCHER = HERE / "older_launcher.py"
FINISHED_MOPD = "05_mopd-76dbc107"
# By which today's code knows the stages of the older run: other hashes would mean that it means something else by them.
HASHES = HERE / "older_hashes.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the older run was launched."""
    shutil.copytree(HERE / "older_run", tmp_path, dirs_exist_ok=True)
    return tmp_path


def cascade(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "cascade_rl.launchers.cli.main", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S)


def superseded(folder: Path) -> list[str]:
    return [path.name for path in (folder / "runs/older/superseded").iterdir()]


def test_it_means_what_it_meant(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    read = RunFolder.open(Path("runs/older")).cascade
    assert capsys.readouterr().err == "", "a renamed or retired key needs an entry in rl_stages/config/schema.py"
    assert content_hashes(read) == json.loads(HASHES.read_text()), (
        "the keys of an older run now mean something else: where a key was renamed or retired, or its default changed, "
        "add that to rl_stages/config/schema.py, with a new number (docs/adding_a_stage.md)"
    )


def test_in_another_precision_it_is_trained_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    read = RunFolder.open(Path("runs/older")).cascade
    asked = RunFolder(Path("runs/older"), override(read, ["parallel.precision=bfloat16"])).changed()
    assert "01_sft (done): its data, or the dtype of its trainer or engines" in map(str, asked)


def test_it_is_read(folder: Path) -> None:
    told = cascade(folder, "status", "runs/older")
    assert (told.returncode, told.stderr) == (0, "")
    assert re.findall(r"^ 0\d_\w+ +\w+ +(\w+)", told.stdout, re.MULTILINE) == [*["done"] * 4, "interrupted"]
    told = cascade(folder, "report", "runs/older")
    assert (told.returncode, told.stderr) == (0, "")
    assert (folder / "runs/older/report.html").stat().st_size > 10_000
    told = cascade(folder, "compare", "runs/older", "runs/older")
    assert (told.returncode, told.stderr) == (0, "")


def test_keys_that_are_gone_do_not_keep_it_from_being_read(folder: Path) -> None:
    path = folder / "runs/older/cascade.yaml"
    path.write_text(path.read_text().replace("  max_draws: 10\n", "  max_draws: 10\n  retired_key: 7\n"))
    for command in (["status", "runs/older"], ["report", "runs/older"], ["compare", "runs/older", "runs/older"]):
        told = cascade(folder, *command)
        assert told.returncode == 0
        assert "unknown key 'math_rl.retired_key', which is 7 there, is ignored" in told.stderr


def test_it_goes_on_and_nothing_is_set_aside(folder: Path) -> None:
    code, out, err = nemo_run(folder, LAUNCHER)
    assert (code, err) == (0, "")
    assert out.count("done before, skipped") == 4
    assert "05_mopd: going on from step 3 of 6\n05_mopd step 4\n" in out
    assert superseded(folder) == [FINISHED_MOPD]
    code, out, err = nemo_run(folder, LAUNCHER)
    assert (code, err, out.count("done before, skipped")) == (0, "", 5)


def test_what_it_had_set_aside_is_taken_back(folder: Path) -> None:
    for _ in range(2):  # the second time from the form of today
        code, out, err = nemo_run(folder, LAUNCHER, "mopd.steps=2")
        assert (code, err, out.count("done before, skipped")) == (0, "", 5)
        assert superseded(folder) == ["05_mopd-ee6d55f5"]
    code, out, _ = nemo_run(folder, LAUNCHER, "--rerun", "mopd")
    assert (code, "05_mopd: going on from step 3 of 6" in out) == (0, True)


def test_a_change_is_asked_about(folder: Path) -> None:
    code, _, err = nemo_run(folder, LAUNCHER, "math_rl.optimizer.lr=2e-5")
    assert code == 2
    assert (
        "  02_math_rl (done): math_rl.optimizer.lr 1e-05 -> 2e-05\n"
        "  03_judge (done): its parent 02_math_rl\n"
        "  04_rlhf (done): its parent 02_math_rl; its judge 03_judge\n"
        "  05_mopd (at step 3): its teacher 02_math_rl; its parent 04_rlhf\n"
    ) in err
    (folder / "talk.jsonl").write_text((folder / "talk.jsonl").read_text().replace("Hello.", "Hi."))
    code, _, err = nemo_run(folder, LAUNCHER)
    assert (code, "  01_sft (done): its data, or the dtype of its trainer or engines\n" in err) == (2, True)
    assert superseded(folder) == [FINISHED_MOPD]
