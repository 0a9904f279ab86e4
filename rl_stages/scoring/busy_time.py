"""How long threads work, added over the threads."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock


class BusyTime:
    """Any thread may use it, also while others do."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._running, self._spent, self._since = 0, 0.0, 0.0

    @contextmanager
    def measured(self) -> Iterator[None]:
        """The time of the block counts."""
        self._add(1)
        try:
            yield
        finally:
            self._add(-1)

    def seconds(self) -> float:
        """Seconds in all blocks so far, those that still run included."""
        self._add(0)
        return self._spent

    def _add(self, change: int) -> None:
        with self._lock:
            now = time.perf_counter()
            self._spent += self._running * (now - self._since)
            self._running, self._since = self._running + change, now
