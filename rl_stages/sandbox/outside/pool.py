"""Runs untrusted programs and commands in boxes, on worker processes of this node and of other nodes."""

from __future__ import annotations

import os
import resource
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
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
from cascade_rl.rl_stages.sandbox.outside.slot import NEWEST_LANDLOCK, Slot
from cascade_rl.rl_stages.sandbox.tier import Tier
from cascade_rl.rl_stages.sandbox.walls.copies import Modules

NOTHING: Modules = MappingProxyType({})


def cores() -> int:
    """Processors that this process may use. A job on a shared node has only some of them."""
    return len(os.sched_getaffinity(0))


def tier_on(node: Node) -> Tier:
    """The strongest tier that works on the node. Raises SandboxUnavailable, which names the node."""
    try:
        return node.call(probe)
    except SandboxUnavailable as error:
        raise SandboxUnavailable(f"node {node.host}: {error}") from None


def _slots_on(node: Node) -> list[Slot]:
    tier, count = tier_on(node), node.call(cores)
    return [Slot(tier, node) for _ in range(count)]


def _allow_open_files(count: int) -> None:
    """Raises the soft limit of open files: each worker takes a connection, and the usual limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 1024 if hard == resource.RLIM_INFINITY else min(count + 1024, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Sandbox:
    """Workers, each with one box at a time: `slots` of them on this node, and one for each core of the `others`. A
    context manager. Safe to use from several threads. `landlock_abi` lowers the version of Landlock on this node to
    that of an older kernel.

    Raises SandboxUnavailable at once if no tier works. Runs raise SandboxFailure if the infrastructure fails.
    """

    def __init__(
        self,
        slots: int = 2,
        tier: Tier | None = None,
        others: Sequence[Node] = (),
        landlock_abi: int = NEWEST_LANDLOCK,
    ) -> None:
        self.tier = tier or probe()
        self._slots = [Slot(self.tier, landlock_abi=landlock_abi) for _ in range(slots)]
        for node in others:
            self._slots += _slots_on(node)
        _allow_open_files(len(self._slots))
        self._free, self._freed = list(self._slots), Condition()
        self._turns = cycle(self._slots)
        self._only: Node | None = None
        self._name = secrets.token_hex(8)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def slots(self) -> int:
        """The number of slots on all nodes."""
        return len(self._slots)

    def close(self) -> None:
        """Ends the workers and removes the folders. Can be called more than once, but not during a run."""
        for slot in self._slots:
            slot.hang_up()  # all at once, since ending thousands one after another takes minutes
        for slot in self._slots:
            slot.close()
        for node in {slot.node for slot in self._slots}:
            with suppress(NodeLost):
                node.call(remove_folders, self._name)

    def on(self, node: Node) -> Self:
        """This sandbox without its slots on other nodes. It shares workers and folders, and is closed with this one."""
        part = copy(self)
        part._only = node
        return part

    def folder(self, files: Mapping[str, str], node: Node | None = None, hidden: Modules = NOTHING) -> Folder:
        """A new folder with these files, as text by relative path. It is on `node`; by default the slots take turns, so
        that each node gets folders in proportion to its slots. The boxes of its commands show none of the node's copies
        of the modules `hidden`.

        It is removed when it is closed, when this sandbox is closed, or when the node's process ends. Raises OSError,
        for instance if the disk is full, and SandboxFailure.
        """
        return Folder.made(node or self._only or next(self._turns).node, self._name, files, hidden)

    def run_program(
        self,
        program: Program,
        inputs: Sequence[bytes],
        stop_on: Callable[[int, TestRun], bool] | None = None,
    ) -> ProgramRun:
        """Runs the program in one box. It is compiled once, and each input has its own process.

        `stop_on` is called in this process, outside the box, after each test, with the test's index. If it returns
        True, the run ends. Without it every input is run. If the infrastructure fails, the whole run is repeated once,
        in any free slot. Raises CompilerUnavailable, SandboxFailure.
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
        """Runs one command in a fresh box. `workspace` is its working directory and its home, and is writable.

        In both tiers with namespaces the workspace is at /workspace, in the tier without at another path. So commands
        should use relative paths. This Python with its packages and the system's programs can be read and are in PATH.
        There is no network. `environment` is added to a small one that contains nothing of this process's environment.
        If this process is root, the files of `workspace` are given to a user of the worker. An `argv` that cannot be
        executed ends with exit code 127. In a workspace that has outgrown its limits no command runs any more: each
        ends with status OUTPUT_LIMIT.

        Raises SandboxFailure at the first failure, without a second try: the workspace may already have changed.
        """
        with self._slot(workspace.node) as slot:
            return slot.run_command(argv, workspace, limits, stdin, environment)

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
        """Waits for a free slot on `node`, or on any node."""
        node = node or self._only
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
