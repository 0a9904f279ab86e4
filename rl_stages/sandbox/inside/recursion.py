"""As deep a recursion as the stack holds, in each release of Python. This module runs in the box.

CPython 3.12 and 3.13 count the calls that pass through C (a function under `functools.cache`, `__init__`, a key of
`sorted`) against a constant that no program can change. In 3.12.1 a memoised recursion ends at depth 496
(python/cpython#112215); the graders that made the data run 3.11, where `sys.setrecursionlimit` rules. So the count of
each thread is set beyond what its stack holds. Python 3.14 measures the stack instead.
"""

from __future__ import annotations

import ctypes
import sys
import threading

DEPTH = 50_000  # the limit that LiveCodeBench and NeMo-Gym set (testing_util.py)
UNBOUNDED = 1 << 24
_FIELDS = 32  # integers at the start of a thread's state, among which the limits are


def deepen() -> None:
    """For this thread and those that will be started. Compile before: the compiler trusts the count."""
    sys.setrecursionlimit(DEPTH)
    if sys.version_info >= (3, 14):
        return
    state = _state()
    # What is left of the limit, the limit, and then the count of calls through C.
    place = next(n for n in range(1, _FIELDS) if state[n] == DEPTH and 0 <= DEPTH - state[n - 1] < 1000) + 1
    state[place] = UNBOUNDED
    bootstrap = threading.Thread._bootstrap  # type: ignore[attr-defined]

    def deep_bootstrap(thread: threading.Thread) -> None:
        _state()[place] = UNBOUNDED
        bootstrap(thread)

    threading.Thread._bootstrap = deep_bootstrap  # type: ignore[attr-defined]


def _state() -> ctypes.Array[ctypes.c_int]:
    get = ctypes.pythonapi.PyThreadState_Get
    get.restype = ctypes.c_void_p
    return (ctypes.c_int * _FIELDS).from_address(get())
