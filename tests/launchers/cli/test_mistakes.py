"""What is said of common mistakes: one message that names what to change, and its exit code."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.launchers.cli import launch, main
from cascade_rl.launchers.stage.exit_status import exit_status
from tests.launchers.fake_launcher import CASCADE
from tests.rl_stages.run.test_run_folder import CASCADE as TINY
from tests.rl_stages.run.test_run_folder import RunFolder

FAKE = str(Path(__file__).parents[1] / "fake_launcher.py")
UNGUARDED = """
from tests.launchers.fake_launcher import CASCADE
from cascade_rl.launchers.cli.launch import launch

launch(CASCADE)
"""


def nemo_run(*arguments: str) -> Callable[[], int]:
    return lambda: launch._launch(CASCADE, list(arguments), ("unused",))


def cascade(*arguments: str) -> Callable[[], int]:
    return lambda: main._run(list(arguments))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "unguarded.py").write_text(UNGUARDED)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/config.json").write_text('{"architectures":\n')
    (tmp_path / "rows.jsonl").write_text("{}\n")
    with RunFolder.claim(tmp_path / "run", TINY):
        monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # the handlers are those of a launcher
    return tmp_path


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        (nemo_run("math_rl.optimizer.learning_rate=1"), 2, "Did you mean 'math_rl.optimizer.lr'?"),
        (nemo_run("name=x", "--only", "none", "seed=2"), 2, "x has no stage 'none'. Did you mean 'sft'?"),
        (nemo_run("rollout.kv_cache_mib=-1"), 2, "rollout.kv_cache_mib: expected at least 1, found -1."),
        (nemo_run("rollout.max_num_seqs=0"), 2, "rollout.max_num_seqs: expected at least 1, found 0."),
        (nemo_run("math_rl.optimizer.lr=-0.001"), 2, "math_rl.optimizer.lr: expected at least 0, found -0.001."),
        (nemo_run("sft.optimizer.clip_grad=-3"), 2, "sft.optimizer.clip_grad: expected at least 0, found -3.0."),
        (nemo_run("base.hf_config=null", "base.hf=broken"), 2, "broken/config.json:2: expected JSON, found "),
        (nemo_run("--runs", "/proc/none"), 1, "/proc/none"),
        (cascade("data", "dedup", "--out", "no/such/x.jsonl", "rows.jsonl"), 1, "no/such"),
        (cascade("plan", "unguarded.py"), 2, "unguarded.py: expected launch(...) under `if __name__ =="),
        (cascade("plan", FAKE, "--assume", "answer_share=2"), 2, "answer_share: expected a share in [0, 1], found 2"),
        (cascade("replay", "run", "none", "1"), 2, "tiny has no stage 'none'."),
        (cascade("curve", "run", "x.svg"), 2, "run: expected the metrics.jsonl of an RL stage, found a f"),
        (cascade("replay", "run", "rl", "9"), 2, "02_rl: expected the samples and metrics of step 9, found none"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_message(
    folder: Path, capsys: pytest.CaptureFixture[str], command: Callable[[], int], code: int, message: str
) -> None:
    assert exit_status("cascade", command) == code
    told = capsys.readouterr().err
    assert message in told
    assert told.startswith("cascade: ") and told.count("\n") == 1


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (UserError("wrong"), 2),
        (PermissionError(errno.EACCES, "Permission denied", "/root/x"), 1),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "x"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_what_is_no_fault_of_the_program_has_no_traceback(raised: BaseException, code: int) -> None:
    def fails() -> int:
        raise raised

    assert exit_status("cascade", fails) == code


def test_a_full_disk_is_one_message_that_says_where_there_is_room(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sys, "argv", ["run_stage", str(folder / "run"), "sft"])
    assert exit_status("01_sft", fails) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"01_sft: No space left on device; free now: {folder / 'run'} ") and told.count("\n") == 1
    assert "goes on from the newest checkpoint" in told


@pytest.mark.parametrize("raised", [ValueError("x"), ConnectionResetError(errno.ECONNRESET, "reset"), OSError("x")])
def test_a_fault_of_the_program_keeps_its_traceback(raised: Exception) -> None:
    def fails() -> int:
        raise raised

    with pytest.raises(type(raised)):
        exit_status("cascade", fails)


@pytest.mark.process
def test_a_reader_that_leaves_is_no_error() -> None:
    source = "import sys; from cascade_rl.launchers.stage.exit_status import exit_status\n"
    source += "sys.exit(exit_status('x', lambda: print('y' * 100_000, flush=True)))"
    read, write = os.pipe()
    os.close(read)
    told = subprocess.run([sys.executable, "-c", source], stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (told.returncode, told.stderr) == (141, "")
