"""Runs untrusted programs and commands in boxes, on a few worker processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from types import MappingProxyType
from typing import Self

from cascade_rl.rl_stages.sandbox.errors import SandboxFailure
from cascade_rl.rl_stages.sandbox.limits import Limits
from cascade_rl.rl_stages.sandbox.probe import probe
from cascade_rl.rl_stages.sandbox.program import CommandRun, Program, ProgramRun, TestRun
from cascade_rl.rl_stages.sandbox.scratch import Scratch
from cascade_rl.rl_stages.sandbox.slot import Slot
from cascade_rl.rl_stages.sandbox.tier import Tier


def cores() -> int:
    """Processors that this process may use, of which a job on a shared node has a part."""
    return len(os.sched_getaffinity(0))


class Sandbox:
    """`slots` workers, each with one box at a time. Safe to use from several threads; a context manager.

    Raises SandboxUnavailable at once when no tier works. The runs raise SandboxFailure when the infrastructure failed.
    """

    def __init__(self, slots: int = 2, tier: Tier | None = None) -> None:
        self.tier = tier or probe()
        self._slots = [Slot(self.tier) for _ in range(slots)]
        self._free: SimpleQueue[Slot] = SimpleQueue()
        self._scratch = Scratch()
        for slot in self._slots:
            self._free.put(slot)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the workers. It can be called more than once, when no run is in progress."""
        for slot in self._slots:
            slot.close()
        self._scratch.close()

    def scratch(self) -> Path:
        """A folder for workspaces, which goes with this process or when this is closed. Raises OSError."""
        return self._scratch.folder()

    def run_program(
        self,
        program: Program,
        inputs: Sequence[bytes],
        stop_on: Callable[[int, TestRun], bool] | None = None,
    ) -> ProgramRun:
        """One box for the program, which is compiled once, and a process for each input.

        `stop_on` is called here, outside the box, after each test, with its index; True ends the run. Without it
        every input is run. After a failure of the infrastructure all of it happens a second time, in another slot.
        Raises CompilerUnavailable, SandboxFailure.
        """
        return self._twice(lambda slot: slot.run_program(program, inputs, stop_on))

    def run_command(
        self,
        argv: Sequence[str],
        workspace: Path,
        limits: Limits,
        stdin: bytes = b"",
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> CommandRun:
        """A fresh box for one command, in which `workspace` is the working directory, the home and what can be written.

        It is at /workspace in both tiers with namespaces, and at another path in the tier without: let commands use
        relative paths. This Python with its packages and the system's programs are there to read, and in PATH; the
        network is not. `environment` is added to a small one that holds nothing of this process's. As root the files
        of `workspace` are given to a user of the worker's. An `argv` that cannot be executed ends with exit code 127.

        Raises SandboxFailure, at the first failure: the workspace may have changed by then.
        """
        return self._in_a_slot(lambda slot: slot.run_command(argv, workspace, limits, stdin, environment))

    def _twice[Run](self, run: Callable[[Slot], Run]) -> Run:
        try:
            return self._in_a_slot(run)
        except SandboxFailure as first:
            try:
                return self._in_a_slot(run)
            except SandboxFailure as second:
                raise SandboxFailure(f"{second} (and before: {first})") from first

    def _in_a_slot[Run](self, run: Callable[[Slot], Run]) -> Run:
        slot = self._free.get()
        try:
            return run(slot)
        finally:
            self._free.put(slot)
