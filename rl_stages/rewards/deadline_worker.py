"""A worker process for checks that may never return. It is killed at a deadline and restarted for the next check.

Neither a thread nor a cancelled future stops such a check (verl#5839, AReaL#1426). The process reads one JSON
request per line on stdin and writes one JSON reply per line on stdout, with `score`, null for a wrong format, and
`detail`.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import resource
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from cascade_rl.engine.cluster.rank_environment import SAFE_PATH
from cascade_rl.engine.core.parent_death import die_with_parent
from cascade_rl.rl_stages.core.verdict import Verdict

READY = b"ready\n"
MEMORY_BYTES = 3 << 30
START_SECONDS = 120.0  # importing sympy on a loaded machine
STARTS = 3
STARVED = 0.25  # a check that could run but had a CPU for less than this share of its deadline is not to blame
PATIENCE = 4  # deadlines that such a check gets: one that never ends should not profit from a busy machine
_TICKS = os.sysconf("SC_CLK_TCK")

Reply = dict[str, Any]


class WorkerDied(RuntimeError):
    """The worker process is gone, for a reason other than a deadline."""


class WorkerKilled(WorkerDied):
    """The worker process was killed by a signal, so by somebody else."""


def asked_twice[T](ask: Callable[[], T], close: Callable[[], None]) -> T:
    """The reply of `ask()`. If its worker is gone, calls `close()` and asks once more, with a new worker.

    A worker killed by somebody else says nothing about the check, but one that died of the check dies again. Then it
    raises WorkerDied or OSError, after `close()`.
    """
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
    """A process that follows the protocol above. Raises WorkerDied or OSError if it is gone."""

    def __init__(self, command: Sequence[str]) -> None:
        environment = os.environ | SAFE_PATH
        self._process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin and self._process.stdout
        self._requests, self._replies = self._process.stdin, self._process.stdout
        if self._read_line(START_SECONDS) != READY:
            self.kill()
            raise WorkerDied(f"not ready after {START_SECONDS:g} s")

    @classmethod
    def started(cls, command: Sequence[str]) -> Worker:
        """A worker that is ready. One that is killed during its start was not asked anything yet, so it is replaced."""
        for _ in range(STARTS - 1):
            with suppress(WorkerKilled):
                return cls(command)
        return cls(command)

    @property
    def pid(self) -> int:
        return self._process.pid

    def state(self) -> tuple[str, float]:
        """The process state in the kernel's letters, such as R for runnable, and the CPU seconds used so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2].split()
        return fields[0], sum(map(int, fields[11:13])) / _TICKS

    def ask(self, request: Mapping[str, Any], seconds: float) -> Reply | None:
        """The reply, or None if there is none in time. The worker cannot be used after that."""
        self.send(request)
        return self.reply(seconds)

    def send(self, request: Mapping[str, Any]) -> None:
        self._requests.write(json.dumps(request).encode() + b"\n")
        self._requests.flush()

    def reply(self, seconds: float) -> Reply | None:
        """The reply to what was sent; None if there is none yet."""
        line = self._read_line(seconds)
        return None if line is None else json.loads(line)

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _read_line(self, seconds: float) -> bytes | None:
        """The next line, or None at the deadline. A line is one small write, so the pipe holds all of it."""
        if not select.select([self._replies], [], [], seconds)[0]:
            return None
        line = self._replies.readline()
        if not line:
            code = self._process.wait()
            raise (WorkerKilled if code < 0 else WorkerDied)(f"exit code {code}")
        return line


class DeadlineCheck:
    """Verdicts from a worker. A check that is undecided at the deadline scores 0.

    It is an infrastructure failure if the worker died twice, or waited for a CPU most of the time, in PATIENCE
    deadlines. Safe to call from several threads. The worker starts with the first request.
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
        worker = self.worker = self.worker or Worker.started([sys.executable, "-m", self._module])
        before = worker.state()[1]
        worker.send(request)
        for deadlines in range(1, PATIENCE + 1):
            if (reply := worker.reply(self._deadline)) is not None:
                return _verdict(reply)
            state, total = worker.state()
            if state not in "RD" or total - before >= STARVED * self._deadline:
                self.close()
                return Verdict.scored(0.0, detail=f"undecided after {deadlines * self._deadline:g} s")
        self.close()
        why = f"undecided after {PATIENCE * self._deadline:g} s, of which {total - before:.2f} s on a CPU"
        return Verdict.infrastructure_failure(why)


def _verdict(reply: Reply) -> Verdict:
    if reply["score"] is None:
        return Verdict.wrong_format(reply["detail"])
    return Verdict.scored(reply["score"], detail=reply["detail"])


def serve(reply: Callable[[Mapping[str, Any]], Reply], package: str | None = None) -> None:
    """The worker's loop: replies until stdin ends. `package` is imported first, so that no reply pays for the import.

    If the parent dies while a check hangs, the kernel kills this process. The interpreter lock cannot delay that.
    """
    die_with_parent()
    if select.select([sys.stdin], [], [], 0)[0]:
        return  # nothing is asked before READY, so stdin has ended: the parent died before the line above
    if package is not None:
        importlib.import_module(package)
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    sys.stdout.buffer.write(READY)
    sys.stdout.flush()
    for line in sys.stdin:
        sys.stdout.write(json.dumps(reply(json.loads(line))) + "\n")
        sys.stdout.flush()
