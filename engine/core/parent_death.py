"""A child that does not outlive its parent. Standard library alone: other interpreters run this file too."""

import ctypes
import signal

PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None)  # before a fork: nothing is loaded between fork and exec


def die_with_parent() -> None:
    """Kill this process when the thread that started it ends, however it ends."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
