"""Says where a rank is when a phase of its step takes longer than it may: rank, phase, and the samples it waits for.

It ends nothing: a collective that hangs is ended by its own timeout, and a job by its time limit. Without it both end
without a word about which rank was late.
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
    """What the cluster's profile says, in seconds."""
    return float(os.environ.get(LIMIT_VARIABLE, DEFAULT_LIMIT_S))


class Watchdog:
    """One rank's. `tell` gets the message once a limit, as long as the phase lasts."""

    def __init__(self, rank: int, limit_s: float, tell: Callable[[str], None]) -> None:
        self.rank, self.limit_s, self.tell = rank, limit_s, tell
        self.pending: Callable[[], Iterable[str]] = tuple

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
        """In the block, `pending()` are the ids that the phase waits for; it is called in another thread."""
        self.pending = pending
        try:
            yield
        finally:
            self.pending = tuple

    def _watch(self, name: str, ended: threading.Event) -> None:
        started = time.monotonic()
        while not ended.wait(self.limit_s):
            self.tell(self._message(name, time.monotonic() - started))

    def _message(self, name: str, seconds: float) -> str:
        ids = list(self.pending())
        more = f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else ""
        waits = f"; {len(ids)} samples pending: {', '.join(ids[:SHOWN])}{more}" if ids else ""
        return f"rank {self.rank} has been in {name} for {seconds:.0f} s{waits}"


def say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
