"""A child that does not outlive its parent, or not by long. Standard library alone: other interpreters run this file
too."""

import ctypes
import os
import select
import signal
import threading
import time

PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None)  # before a fork: nothing is loaded between fork and exec


def die_with_parent() -> None:
    """Kill this process when the thread that started it ends, however it ends."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def outlive_parent() -> None:
    """Takes `die_with_parent` back. A process that is stopped goes on when the thread that started it ends."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGCONT, 0, 0, 0)


def end_soon_after_parent(seconds: float) -> None:
    """However this process hangs, it is killed when so many seconds have passed since the end of its parent."""
    threading.Thread(target=_end_after, args=(os.pidfd_open(os.getppid()), seconds), daemon=True).start()


def _end_after(parent: int, seconds: float) -> None:
    select.select([parent], [], [])
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)
