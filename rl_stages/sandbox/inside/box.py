"""The processes of one box, which are all descendants of its worker, and how the worker watches them."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from cascade_rl.rl_stages.sandbox import process_tree
from cascade_rl.rl_stages.sandbox.limits import MIB

TICK_SECONDS = 0.05


class ClientGone(Exception):
    """The client has ended, so nobody reads the answer."""


class BoxLost(Exception):
    """The infrastructure failed, so this box says nothing about its program."""


class TooMuchMemory(Exception):
    """The processes of a box together exceed the memory limit."""


@dataclass(frozen=True)
class Box:
    """`pid` is the process that the worker started. `client` is the process that the worker answers to."""

    pid: int
    stdin: int
    stdout: int
    complaints: int
    client: int

    def answers(self, deadline: float, memory_mib: int) -> bool:
        """Whether the box writes to its stdout before the deadline. Raises ClientGone, TooMuchMemory."""
        while not select.select([self.stdout], [], [], TICK_SECONDS)[0]:
            self.check(memory_mib)
            if time.monotonic() > deadline:
                return False
        return True

    def check(self, memory_mib: int) -> None:
        """Must be called every tick. Raises ClientGone, TooMuchMemory."""
        if client_gone(self.client):
            raise ClientGone
        if process_tree.usage(os.getpid()).memory_bytes > memory_mib * MIB:
            raise TooMuchMemory

    def starved(self, wall_seconds: float) -> bool:
        """Whether the box ran, or waited for a processor, for more than half of the wall time.

        Then the machine was too busy. Otherwise the box was mostly waiting for something else.
        """
        usage = process_tree.usage(os.getpid())
        return usage.cpu_seconds + usage.queued_seconds > wall_seconds / 2

    def lost(self, what: str) -> BoxLost:
        return BoxLost(f"{what}: {os.pread(self.complaints, 2000, 0).decode(errors='replace').strip() or 'no message'}")


def client_gone(client: int) -> bool:
    """Whether the client has ended or closed its end of the pipe. Call it only while the client waits for an answer.

    Such a client sends nothing, so anything that can be read is the end of the pipe. The parent's id is checked too,
    because a child that the client forked may hold the pipe open.
    """
    return os.getppid() != client or bool(select.select([0], [], [], 0)[0])


@contextmanager
def open_box(
    command: Sequence[str],
    client: int,
    *,
    environment: Mapping[str, str],
    user: int | None,
    confine: Callable[[], None],
    stdin: int = subprocess.PIPE,
    errors_to_output: bool = False,
    folder: str = "/",
    pass_fds: Sequence[int] = (),
) -> Iterator[Box]:
    """Starts a box. On exit all its processes are killed and its descriptors closed."""
    complaints = os.memfd_create("complaints")
    identity = {} if user is None else {"user": user, "group": user, "extra_groups": []}
    try:
        process = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if errors_to_output else complaints,
            bufsize=0,
            env=environment,
            cwd=folder,
            pass_fds=pass_fds,
            start_new_session=True,
            preexec_fn=confine,
            **identity,  # type: ignore[call-overload]
        )
        try:
            requests = process.stdin.fileno() if process.stdin else -1
            yield Box(process.pid, requests, process.stdout.fileno(), complaints, client)
        finally:
            process_tree.end_descendants(os.getpid())
            process.returncode = 0  # reaped by end_descendants, not by Popen
            for stream in (process.stdin, process.stdout):
                if stream:
                    stream.close()
    finally:
        os.close(complaints)
