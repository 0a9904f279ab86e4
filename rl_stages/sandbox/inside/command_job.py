"""A worker's side of one command: reads its output until it ends or exceeds a limit."""

from __future__ import annotations

import os
import resource
import select
import signal
import time
from collections.abc import Iterable, Iterator

from cascade_rl.rl_stages.sandbox import process_tree
from cascade_rl.rl_stages.sandbox.disk import Held, Overfull, held, nameless
from cascade_rl.rl_stages.sandbox.inside.box import Box
from cascade_rl.rl_stages.sandbox.inside.frames import Frame
from cascade_rl.rl_stages.sandbox.inside.watch import TICK_SECONDS, BeyondLimit, Watch
from cascade_rl.rl_stages.sandbox.limits import MIB, Limits

WORKSPACE_FILES = 16  # times `file_mib`: by how much a workspace may grow, over all commands; its size is only polled
WORKSPACE_ENTRIES = 20_000  # by how many files and folders
SIZE_SECONDS = 0.2


class Disk:
    """The folders that a command may fill, and files without a name. `first`: what the workspace held before its first
    command."""

    def __init__(self, workspace: str, scratch: str | None, first: Held, limits: Limits) -> None:
        self._folders = [workspace, scratch] if scratch else [workspace]
        self._file_bytes = limits.file_mib * MIB
        self._most = Held(
            first.bytes + WORKSPACE_FILES * limits.file_mib * MIB,
            first.entries + WORKSPACE_ENTRIES,
        )

    def overfull(self, processes: Iterable[int] = ()) -> str | None:
        """Why no more fits; None if there is room. `processes` may have files without a name."""
        try:
            held(self._folders, self._most, nameless(processes, self._file_bytes))
        except Overfull as overfull:
            return str(overfull)
        return None


def refusal(why: str) -> Frame:
    """The answer to a command in a workspace that already is overfull. Otherwise each could add to it."""
    return _not_run("output limit", -9, f"the workspace has {why}: no further command runs in it")


def not_executable(why: str) -> Frame:
    """The answer to a command that is none. Its agent chose its words, so it is no failure of the machine."""
    return _not_run("runtime error", 127, f"this command cannot be executed: {why}")


def _not_run(status: str, exit_code: int, why: str) -> Frame:
    return {"status": status, "exit_code": exit_code, "cpu_seconds": 0.0, "wall_seconds": 0.0}, f"{why}\n".encode()


class Command:
    """One command in a box. Raises BoxLost, ClientGone."""

    def __init__(self, box: Box, limits: Limits, disk: Disk, watch: Watch) -> None:
        self._box, self._limits, self._disk, self._watch = box, limits, disk, watch
        self._output = bytearray()
        self._next_size = 0.0
        self._cpu_seconds_before = _cpu_seconds_of_children()
        os.set_blocking(box.channel, False)

    def run(self) -> Frame:
        ended = os.pidfd_open(self._box.pid)
        try:
            status = self._until(ended)
        except BeyondLimit as beyond:
            status = beyond.status
        finally:
            os.close(ended)
        if status:
            os.kill(self._box.pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(self._box.pid, 0)[1])
        process_tree.end_descendants(os.getpid())
        cpu_seconds = _cpu_seconds_of_children() - self._cpu_seconds_before
        code = 128 - code if code > 128 else code  # bwrap reports a signal as 128 + its number
        if code == -signal.SIGXCPU or (code == -signal.SIGKILL and cpu_seconds > self._limits.cpu_seconds):
            status = status or "time limit"
        head = {
            "status": status or ("runtime error" if code else "ok"),
            "exit_code": code,
            "cpu_seconds": cpu_seconds,
            "wall_seconds": self._watch.wall_seconds,
        }
        return head, bytes(self._output[: self._limits.output_bytes])

    def _until(self, ended: int) -> str | None:
        """The limit that was exceeded, or None if the command ended by itself."""
        wanted = [ended, self._box.channel]
        next_check = 0.0
        while True:
            ready = select.select(wanted, [], [], TICK_SECONDS)[0]
            if self._box.channel in ready and self._drain():
                wanted.remove(self._box.channel)
            if len(self._output) > self._limits.output_bytes:
                return "output limit"
            if ended in ready:
                self._drain()
                return None
            if time.monotonic() > next_check:
                next_check = time.monotonic() + TICK_SECONDS
                self._watch.look()
                if status := self._beyond():
                    return status

    def _beyond(self) -> str | None:
        if self._watch.wall_seconds > self._limits.wall_seconds and not self._watch.starved():
            return "time limit"
        if self._watch.wall_seconds > self._limits.patience_seconds:
            raise self._box.lost("the machine is too busy: no processor for most of the wall time")
        if time.monotonic() < self._next_size:
            return None
        overfull = self._disk.overfull(self._watched())
        self._next_size = time.monotonic() + SIZE_SECONDS
        return "output limit" if overfull else None

    def _watched(self) -> Iterator[int]:
        """The box's processes. To read the files of all may take long; meanwhile they are watched."""
        for process in process_tree.descendants(os.getpid()):
            self._watch.look()
            yield process

    def _drain(self) -> bool:
        """Reads what is available. True at the end of the pipe."""
        while len(self._output) <= self._limits.output_bytes:
            try:
                chunk = os.read(self._box.channel, 1 << 16)
            except BlockingIOError:
                return False
            if not chunk:
                return True
            self._output += chunk
        return False


def _cpu_seconds_of_children() -> float:
    """Processor time of the children that have been reaped, including that of their reaped children."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
