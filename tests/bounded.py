"""A test that hangs fails by its name, before the limit of the whole run ends it without one."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

LIMIT_S = 1200.0  # of one test with its fixtures; the longest takes ten minutes on a busy machine


@contextmanager
def bounded(seconds: float = LIMIT_S) -> Iterator[None]:
    """The block fails where it is after so many seconds. A fork has no limit. Main thread only."""

    def expire(*_: Any) -> None:
        pytest.fail(f"expected an end within {seconds:g} s, found the test still here")

    handler = signal.signal(signal.SIGALRM, expire)
    outer, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, outer)
        signal.signal(signal.SIGALRM, handler)
