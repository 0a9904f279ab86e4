"""A launcher file run as a person runs it, and every process that comes of it, however deep."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

MARK = "CASCADE_TEST_RUN"
NEMO_RUN = Path(sys.executable).with_name("nemo-run")
LIMIT_S = 900.0


class Launched:
    """`nemo-run LAUNCHER [settings]` in `folder`. What it starts inherits a mark, by which it is found again."""

    def __init__(self, folder: Path, launcher: Path, *settings: str) -> None:
        self.mark = f"{MARK}={folder}"
        self.process = subprocess.Popen(
            [NEMO_RUN, launcher, *settings],
            cwd=folder,
            env={**os.environ, MARK: str(folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self) -> tuple[int, str, str]:
        """Exit code, stdout and stderr. What still runs at the limit is killed, and fails the test."""
        try:
            out, err = self.process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            out, err = self.process.communicate()
            raise AssertionError(f"not finished after {LIMIT_S:.0f} s\n{out}\n{err}") from None
        return self.process.returncode, out, err

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise AssertionError("\n".join(self.process.communicate()))
            time.sleep(0.01)

    def kill(self) -> None:
        """SIGKILL for the launcher, its ranks, their engine and verifiers: what a machine's end does to them."""
        while pids := self.pids():
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.poll()
            time.sleep(0.01)

    def pids(self, command: str = "") -> list[int]:
        """Living processes of this launch whose command line has `command` in it."""
        return [
            int(folder.name)
            for folder in Path("/proc").glob("[0-9]*")
            if self.mark in _read(folder / "environ").split("\0") and command in _read(folder / "cmdline")
        ]


def cpu_ticks(pid: int) -> int:
    """Hundredths of a second that a process has computed."""
    user, system = _read(Path(f"/proc/{pid}/stat")).rsplit(")", 1)[1].split()[11:13]
    return int(user) + int(system)


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""
