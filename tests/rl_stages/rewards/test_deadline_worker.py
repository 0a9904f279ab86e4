"""Workers that are killed while they start: nothing was asked of them, so that it says nothing about any answer."""

import sys
from pathlib import Path

import pytest

from cascade_rl.rl_stages.rewards.deadline_worker import Worker, WorkerDied, WorkerKilled

# Counts its starts in a file; the first ones end as `ending` says, the next answers.
SCRIPT = """
import os, signal, sys
starts = open(sys.argv[1], "a"); starts.write("."); starts.close()
if os.path.getsize(sys.argv[1]) <= int(sys.argv[2]):
    {ending}
print("ready", flush=True)
for line in sys.stdin:
    print(line, end="", flush=True)
"""
KILLED, BROKEN = "os.kill(os.getpid(), signal.SIGKILL)", "sys.exit(1)"


def command(folder: Path, failures: int, ending: str) -> list[str]:
    return [sys.executable, "-c", SCRIPT.format(ending=ending), str(folder / "starts"), str(failures)]


@pytest.mark.process
def test_a_worker_that_is_killed_while_it_starts_is_started_again(tmp_path: Path) -> None:
    worker = Worker.started(command(tmp_path, 2, KILLED))
    assert worker.ask({"score": 0.5}, 120.0) == {"score": 0.5}
    worker.kill()
    assert (tmp_path / "starts").read_text() == "..."


@pytest.mark.process
def test_not_for_ever(tmp_path: Path) -> None:
    with pytest.raises(WorkerKilled, match="exit code -9"):
        Worker.started(command(tmp_path, 9, KILLED))
    assert (tmp_path / "starts").read_text() == "..."


@pytest.mark.process
def test_one_that_ends_by_itself_is_broken(tmp_path: Path) -> None:
    with pytest.raises(WorkerDied, match="exit code 1"):
        Worker.started(command(tmp_path, 9, BROKEN))
    assert (tmp_path / "starts").read_text() == "."
