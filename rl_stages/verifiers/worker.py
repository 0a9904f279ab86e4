"""A process for checks that may never return: killed at a deadline, started again for the next check.

Neither a thread nor a cancelled future stops such a check (verl#5839, AReaL#1426). The process reads one JSON
request a line on stdin and writes one JSON reply a line on stdout: `score`, or null for a wrong format, and
`detail`.
"""

from __future__ import annotations

import json
import logging
import resource
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from cascade_rl.rl_stages.verdict import Verdict

READY = b"ready\n"
MEMORY_BYTES = 3 << 30
START_SECONDS = 120.0  # importing sympy on a loaded machine

Reply = dict[str, Any]


class WorkerDied(RuntimeError):
    """The worker process is gone, for a reason that no deadline explains."""


def asked_twice[T](ask: Callable[[], T], close: Callable[[], None]) -> T:
    """What `ask()` says; where its worker is gone, `close()` and once more with a new one. A worker that was killed
    says nothing about the check, one that died of it dies again: then WorkerDied or OSError, and all is closed."""
    try:
        return ask()
    except (WorkerDied, OSError):
        close()
    try:
        return ask()
    except (WorkerDied, OSError):
        close()
        raise


class Worker:
    """A process that keeps to the protocol above. Raises WorkerDied, or OSError, when it is gone."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin and self._process.stdout
        self._requests, self._replies = self._process.stdin, self._process.stdout
        if self._read_line(START_SECONDS) != READY:
            self.kill()
            raise WorkerDied(f"not ready after {START_SECONDS:g} s")

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, request: Mapping[str, Any], seconds: float) -> Reply | None:
        """The reply, or None when there is none in time; the worker is then of no further use."""
        self._requests.write(json.dumps({**request, "seconds": seconds}).encode() + b"\n")
        self._requests.flush()
        line = self._read_line(seconds)
        return None if line is None else json.loads(line)

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _read_line(self, seconds: float) -> bytes | None:
        """The next line, or None at the deadline. A line is one small write: the pipe holds all of it."""
        if not select.select([self._replies], [], [], seconds)[0]:
            return None
        line = self._replies.readline()
        if not line:
            raise WorkerDied(f"exit code {self._process.wait()}")
        return line


class DeadlineCheck:
    """Verdicts from a worker: score 0 when undecided at the deadline, an infrastructure failure when it died twice.

    Safe to call from several threads. The worker starts with the first request.
    """

    def __init__(self, module: str, deadline_seconds: float) -> None:
        self.worker: Worker | None = None
        self._module = module
        self._deadline = deadline_seconds
        self._lock = threading.Lock()

    def __call__(self, request: Mapping[str, Any]) -> Verdict:
        with self._lock:
            try:
                return asked_twice(partial(self._ask, request), self.close)
            except (WorkerDied, OSError) as death:
                return Verdict.infrastructure_failure(f"{self._module.rpartition('.')[2]}: {death}")

    def close(self) -> None:
        """Ends the worker process, if there is one."""
        if self.worker is not None:
            self.worker.kill()
            self.worker = None

    def _ask(self, request: Mapping[str, Any]) -> Verdict:
        self.worker = self.worker or Worker([sys.executable, "-m", self._module])
        reply = self.worker.ask(request, self._deadline)
        if reply is None:
            self.close()
            return Verdict.scored(0.0, detail=f"undecided after {self._deadline:g} s")
        if reply["score"] is None:
            return Verdict.wrong_format(reply["detail"])
        return Verdict.scored(reply["score"], detail=reply["detail"])


def serve(reply: Callable[[Mapping[str, Any]], Reply]) -> None:
    """The worker's side: answers until stdin ends.

    Should the parent die while a check hangs, an alarm ends the process; its default action is one that no
    interpreter lock can delay.
    """
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    sys.stdout.buffer.write(READY)
    sys.stdout.flush()
    for line in sys.stdin:
        request = json.loads(line)
        signal.alarm(int(request["seconds"]) + 10)
        sys.stdout.write(json.dumps(reply(request)) + "\n")
        sys.stdout.flush()
        signal.alarm(0)
