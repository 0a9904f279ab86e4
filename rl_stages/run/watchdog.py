"""Reports a rank whose phase takes longer than its limit: the rank, the phase, and the samples that it waits for.

It stops nothing. A hanging collective ends by its own timeout, and a job by its time limit. Neither says which rank was
late; this does.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

LIMIT_VARIABLE = "CASCADE_PHASE_LIMIT_S"
DEFAULT_LIMIT_S = 1800.0
SHOWN = 8


def limit_s() -> float:
    """The limit of a phase in seconds, as the cluster's profile sets it."""
    return float(os.environ.get(LIMIT_VARIABLE, DEFAULT_LIMIT_S))


class Watchdog:
    """The watchdog of one rank. While a phase lasts, `tell` gets a message each time another `limit_s` has passed."""

    def __init__(self, rank: int, limit_s: float, tell: Callable[[str], None]) -> None:
        self.rank, self.limit_s, self.tell = rank, limit_s, tell
        self.pending: list[Callable[[], Iterable[str]]] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        ended = threading.Event()
        watch = threading.Thread(target=self._watch, args=(name, ended), daemon=True)
        watch.start()
        try:
            yield
        finally:
            ended.set()
            watch.join()

    @contextmanager
    def waiting_for(self, pending: Callable[[], Iterable[str]]) -> Iterator[None]:
        """In the block, `pending()` returns the ids that the phase waits for. It is called from another thread."""
        self.pending.append(pending)
        try:
            yield
        finally:
            self.pending.remove(pending)

    def _watch(self, name: str, ended: threading.Event) -> None:
        started = time.monotonic()
        while not ended.wait(self.limit_s):
            self.tell(self._message(name, time.monotonic() - started))

    def _message(self, name: str, seconds: float) -> str:
        ids = [name for pending in list(self.pending) for name in pending()]
        more = f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else ""
        waits = f"; {len(ids)} samples pending: {', '.join(ids[:SHOWN])}{more}" if ids else ""
        return f"rank {self.rank} has been in {name} for {seconds:.0f} s{waits}"


def say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
