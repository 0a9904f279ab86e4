"""Time limits: a phase that overruns raises; one that hangs ends the process after the table so far is printed."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

PHASE_SECONDS = 40.0  # per provider and shape, compilation included
TOTAL_SECONDS = 230.0
GRACE_SECONDS = 25.0  # time for the exception to surface; C code, such as a wait for a kernel, delays it


class Limits:
    """The limits of one run: no phase lasts beyond TOTAL_SECONDS + GRACE_SECONDS.

    give_up  called from another thread with the name of what hung, before the process exits with status 1
    """

    def __init__(self, give_up: Callable[[str], object]):
        self._give_up = give_up
        self._end = time.monotonic() + TOTAL_SECONDS

    @property
    def over(self) -> bool:
        return time.monotonic() > self._end

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Raises TimeoutError in the block once its time is over. Main thread only, because it uses signals."""
        seconds = max(0.1, min(PHASE_SECONDS, self._end - time.monotonic()))

        def expire(signum: int, frame: FrameType | None) -> None:
            raise TimeoutError(f"over {seconds:.1f} s")

        deadline = seconds + GRACE_SECONDS
        hang = threading.Timer(deadline, self._exit, [f"{name} hung for {deadline:.1f} s"])
        hang.daemon = True
        hang.start()
        before = signal.signal(signal.SIGALRM, expire)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            hang.cancel()

    def _exit(self, reason: str) -> None:
        try:
            self._give_up(reason)
        finally:
            os._exit(1)  # the main thread cannot be interrupted
