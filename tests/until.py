"""Waiting for a state, never for a number of seconds: a busy machine takes ten times as many."""

import time
from collections.abc import Callable

LIMIT_S = 240.0  # costs nothing where the state comes, also as the timeout of a process that ends by itself


def until[T](state: Callable[[], T]) -> T:
    """What `state` returns, once that is true."""
    deadline = time.monotonic() + LIMIT_S
    while not (found := state()):
        assert time.monotonic() < deadline, f"waited in vain for {LIMIT_S:g} s"
        time.sleep(0.02)
    return found
