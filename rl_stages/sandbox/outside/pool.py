"""Runs untrusted programs and commands in boxes, on worker processes of this node and of others."""

from __future__ import annotations

import os
import resource
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import cycle
from threading import Condition
from types import MappingProxyType
from typing import Self

from cascade_rl.engine.cluster.node import Node, NodeLost
from cascade_rl.rl_stages.sandbox.errors import SandboxFailure, SandboxUnavailable
from cascade_rl.rl_stages.sandbox.limits import Limits
from cascade_rl.rl_stages.sandbox.outside.folder import Folder, remove_folders
from cascade_rl.rl_stages.sandbox.outside.probe import probe
from cascade_rl.rl_stages.sandbox.outside.program import CommandRun, Program, ProgramRun, TestRun
from cascade_rl.rl_stages.sandbox.outside.slot import Slot
from cascade_rl.rl_stages.sandbox.tier import Tier


def cores() -> int:
    """Processors that this process may use, of which a job on a shared node has a part."""
    return len(os.sched_getaffinity(0))


def tier_on(node: Node) -> Tier:
    """The strongest that works there. Raises SandboxUnavailable, which names the node."""
    try:
        return node.call(probe)
    except SandboxUnavailable as error:
        raise SandboxUnavailable(f"node {node.host}: {error}") from None


def _slots_on(node: Node) -> list[Slot]:
    tier, count = tier_on(node), node.call(cores)
    return [Slot(tier, node) for _ in range(count)]


def _allow_open_files(count: int) -> None:
    """Each worker is a connection, and a usual limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 1024 if hard == resource.RLIM_INFINITY else min(count + 1024, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Sandbox:
    """Workers, each with one box at a time: `slots` on this node, one for each core of the `others`. Safe to use from
    several threads; a context manager.

    Raises SandboxUnavailable at once when no tier works. The runs raise SandboxFailure when the infrastructure failed.
    """

    def __init__(self, slots: int = 2, tier: Tier | None = None, others: Sequence[Node] = ()) -> None:
        self.tier = tier or probe()
        self._slots = [Slot(self.tier) for _ in range(slots)]
        for node in others:
            self._slots += _slots_on(node)
        _allow_open_files(len(self._slots))
        self._free, self._freed = list(self._slots), Condition()
        self._turns = cycle(self._slots)
        self._name = secrets.token_hex(8)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def slots(self) -> int:
        """On all nodes."""
        return len(self._slots)

    def close(self) -> None:
        """Ends the workers, removes the folders. It can be called more than once, when no run is in progress."""
        for slot in self._slots:
            slot.hang_up()  # all at once: thousands that end one after another take minutes
        for slot in self._slots:
            slot.close()
        for node in {slot.node for slot in self._slots}:
            with suppress(NodeLost):
                node.call(remove_folders, self._name)

    def folder(self, files: Mapping[str, str], node: Node | None = None) -> Folder:
        """A folder with these files, text by relative path, on `node`, or else on each in turn as many as it has slots.
        It goes with the node's process, or when this is closed, or it is. Raises OSError, such as of a full disk,
        SandboxFailure."""
        return Folder.made(node or next(self._turns).node, self._name, files)

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
        workspace: Folder,
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
        with self._slot(workspace.node) as slot:
            return slot.run_command(argv, workspace.path, limits, stdin, environment)

    def _twice[Run](self, run: Callable[[Slot], Run]) -> Run:
        try:
            with self._slot() as slot:
                return run(slot)
        except SandboxFailure as first:
            try:
                with self._slot() as slot:
                    return run(slot)
            except SandboxFailure as second:
                raise SandboxFailure(f"{second} (and before: {first})") from first

    @contextmanager
    def _slot(self, node: Node | None = None) -> Iterator[Slot]:
        """One that is free, on any node or on this one; waited for."""
        with self._freed:
            slot = self._freed.wait_for(lambda: next((s for s in self._free if node in (None, s.node)), None))
            assert slot
            self._free.remove(slot)
        try:
            yield slot
        finally:
            with self._freed:
                self._free.append(slot)
                self._freed.notify_all()
