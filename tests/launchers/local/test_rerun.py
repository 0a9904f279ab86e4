"""What has run is trained again only by somebody's leave: `--rerun`, or a yes on the terminal."""

import os
import pty
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from tests.launchers.local.test_run_local import LAUNCHER, NEMO_RUN, nemo_run
from tests.until import LIMIT_S

CHANGE = "sft.optimizer.lr=1e-4"
SAID = "  01_sft (done): sft.optimizer.lr 5e-05 -> 0.0001\n  02_math_rl (done): its parent 01_sft\n"


@pytest.fixture(scope="module")
def run_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    assert nemo_run(folder, LAUNCHER)[0] == 0
    return folder


@pytest.fixture
def finished(run_once: Path, tmp_path: Path) -> Path:
    shutil.copytree(run_once, tmp_path, dirs_exist_ok=True)
    return tmp_path


def files(folder: Path) -> dict[str, bytes]:
    """Of its stages, finished or set aside."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("0*/**/*") if path.is_file()}


def superseded(folder: Path) -> list[str]:
    return sorted(path.name.partition("-")[0] for path in (folder / "runs/fake/superseded").glob("*"))


def on_a_terminal(folder: Path, answer: str, *arguments: str) -> tuple[int, str]:
    """Exit code and what the terminal shows."""
    ours, theirs = pty.openpty()
    command = [*NEMO_RUN, str(LAUNCHER), *arguments]
    process = subprocess.Popen(command, cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    os.write(ours, answer.encode())
    shown = b""
    with suppress(OSError):  # the last process that had the other end is gone
        while part := os.read(ours, 65_536):
            shown += part
    os.close(ours)
    return process.wait(timeout=LIMIT_S), shown.decode().replace("\r\n", "\n")


def test_without_a_terminal_nothing_is_done_before_it_is_agreed(finished: Path) -> None:
    before = files(finished)
    for arguments in ((), ("--rerun", "math_rl"), ("--only", "math_rl")):
        code, out, err = nemo_run(finished, LAUNCHER, CHANGE, *arguments)
        assert (code, out) == (2, "")
        assert SAID.splitlines()[0] in err
        assert files(finished) == before
    assert f"{SAID}Nothing was moved." in nemo_run(finished, LAUNCHER, CHANGE)[2]


def test_what_is_agreed_in_advance_runs_again_and_is_said(finished: Path) -> None:
    code, out, err = nemo_run(finished, LAUNCHER, CHANGE, "--rerun", "sft,math_rl")
    assert (code, err) == (0, "")
    assert SAID.replace("  0", "set aside 0") in out
    assert "02_math_rl step 6\n" in out
    assert superseded(finished) == ["01_sft", "02_math_rl"]
    code, out, err = nemo_run(finished, LAUNCHER, CHANGE, "--rerun", "sft,math_rl")
    assert (code, err, out.count("done before, skipped")) == (0, "", 2)  # --rerun alone starts nothing
    code, out, err = nemo_run(finished, LAUNCHER)  # undone: the old ones come back
    assert (code, err, out.count("done before, skipped")) == (0, "", 2)
    assert "0.0001 -> 5e-05, and the folder that was finished before is taken back\n" in out


def test_a_stage_that_is_not_there_cannot_be_agreed_to(finished: Path) -> None:
    code, _, err = nemo_run(finished, LAUNCHER, "--rerun", "maths")
    assert (code, "--rerun: expected stages, found 'maths'. Did you mean 'math_rl'?" in err) == (2, True)


def test_the_terminal_is_asked(finished: Path) -> None:
    before = files(finished)
    for answer in ("n\n", "\n", "\x04"):  # the last is Ctrl-D
        code, shown = on_a_terminal(finished, answer, CHANGE)
        assert code == 2
        assert f"{SAID}Set them aside under superseded/ and run them again? [y/N]" in shown
        assert files(finished) == before
    code, shown = on_a_terminal(finished, "y\n", CHANGE)
    assert (code, superseded(finished)) == (0, ["01_sft", "02_math_rl"])
    assert "02_math_rl step 6\n" in shown


def test_steps_of_a_stage_that_is_not_done_are_work_too(tmp_path: Path) -> None:
    assert nemo_run(tmp_path, LAUNCHER, FAKE_FAIL="0:4:5")[0] == 5
    code, _, err = nemo_run(tmp_path, LAUNCHER, "math_rl.updates_per_step=2", "math_rl.surrogate=clip")
    assert (code, "  02_math_rl (at step 3): math_rl.surrogate reinforce -> clip; " in err) == (2, True)
