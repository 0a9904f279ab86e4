"""Kills the processes of a stage once, as a crash or a preemption does."""

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from cascade_rl.rl_stages.sandbox import process_tree

POLL_S = 0.02


class KilledOnce:
    """In the block, SIGKILL reaches every process below this one as soon as `sign` exists. `done`: whether it has."""

    def __init__(self, sign: Path) -> None:
        self.sign, self.done = sign, False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(POLL_S):
            if self.sign.exists():
                self.done = True
                for pid in process_tree.descendants(os.getpid()):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                return
