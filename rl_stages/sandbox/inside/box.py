"""The processes of one box, which are all descendants of its worker, and what they say to it."""

from __future__ import annotations

import errno
import os
import select
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from cascade_rl.rl_stages.sandbox import process_tree
from cascade_rl.rl_stages.sandbox.inside import frames
from cascade_rl.rl_stages.sandbox.inside.watch import TICK_SECONDS, Watch


class BoxLost(Exception):
    """The infrastructure failed, so this box says nothing about its program."""


class NotExecutable(Exception):
    """No process can be started with the words of a command: they are too long, or are no text."""


@dataclass(frozen=True)
class Box:
    """`pid` is the process that the worker started. `channel` has its stdout, and takes its stdin if it has frames."""

    pid: int
    channel: int
    complaints: int

    def answer(self, deadline: float, watch: Watch, most_bytes: int) -> frames.Frame | None:
        """The next frame of the box; None if it is not there by the deadline.

        Raises what `watch.look` raises, EOFError or ConnectionError if the box has ended, and Malformed.
        """
        received = b""
        while wanted := frames.missing(received, most_bytes):
            while not select.select([self.channel], [], [], TICK_SECONDS)[0]:
                watch.look()
                if time.monotonic() > deadline:
                    return None
            chunk = os.read(self.channel, min(wanted, 1 << 20))
            if not chunk:
                raise EOFError("the box ended within a frame")
            received += chunk
        return frames.parsed(received)

    def lost(self, what: str) -> BoxLost:
        return BoxLost(f"{what}: {os.pread(self.complaints, 2000, 0).decode(errors='replace').strip() or 'no message'}")


@contextmanager
def open_box(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    user: int | None,
    confine: Callable[[], None],
    stdin: int | None = None,
    folder: str = "/",
    pass_fds: Sequence[int] = (),
) -> Iterator[Box]:
    """Starts a box. On exit all its processes are killed and its descriptors closed. Raises NotExecutable.

    Without `stdin` the box talks in frames: its stdin and stdout are a socket, which no process can open again through
    /proc, as it can a pipe. With it, its stderr is in its stdout.
    """
    complaints = os.memfd_create("complaints")
    ours, theirs = os.pipe() if stdin is not None else (end.detach() for end in socket.socketpair())
    identity = {} if user is None else {"user": user, "group": user, "extra_groups": []}
    try:
        process = _started(
            theirs,
            args=command,
            stdin=theirs if stdin is None else stdin,
            stdout=theirs,
            stderr=complaints if stdin is None else subprocess.STDOUT,
            env=environment,
            cwd=folder,
            pass_fds=pass_fds,
            start_new_session=True,
            preexec_fn=confine,
            **identity,
        )
        try:
            yield Box(process.pid, ours, complaints)
        finally:
            process_tree.end_descendants(os.getpid())
            process.returncode = 0  # reaped by end_descendants, not by Popen
    finally:
        os.close(ours)
        os.close(complaints)


def _started(theirs: int, **arguments: object) -> subprocess.Popen[bytes]:
    """The process, which alone then has its end of the channel. Raises NotExecutable."""
    try:
        return subprocess.Popen(**arguments)  # type: ignore[call-overload]
    except ValueError as error:
        raise NotExecutable(str(error)) from None
    except OSError as error:
        if error.errno == errno.E2BIG:
            raise NotExecutable(error.strerror) from None
        raise
    finally:
        os.close(theirs)
