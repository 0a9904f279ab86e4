"""The client's end of one worker process, here or on another node."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from cascade_rl.engine.cluster.node import Node, NodeLost, ThisNode
from cascade_rl.rl_stages.sandbox.errors import CompilerUnavailable, SandboxFailure
from cascade_rl.rl_stages.sandbox.inside.frames import Frame, read_frame, write_frame
from cascade_rl.rl_stages.sandbox.limits import Limits
from cascade_rl.rl_stages.sandbox.outside.folder import Folder
from cascade_rl.rl_stages.sandbox.outside.program import CommandRun, Program, ProgramRun, Status, TestRun
from cascade_rl.rl_stages.sandbox.tier import Tier
from cascade_rl.rl_stages.sandbox.walls.confinement import COMPILER

WORKER = "cascade_rl.rl_stages.sandbox.inside.box_worker"
SLACK_SECONDS = 120.0  # added to the worker's own limits: a start on a loaded machine, precompiling a header
CLOSE_SECONDS = 5.0
NEWEST_LANDLOCK = 1 << 16  # whatever the kernel has

StopOn = Callable[[int, TestRun], bool]


_workers: dict[int, subprocess.Popen[bytes]] = {}


def launch_worker(theirs: Connection, tier: Tier, landlock_abi: int) -> int:
    """Starts a worker on this host that communicates over `theirs`. Returns its process id. Its environment has no
    secrets to leak."""
    worker = subprocess.Popen(
        [sys.executable, "-m", WORKER, tier, str(os.getpid()), str(landlock_abi)],
        stdin=theirs.fileno(),
        stdout=theirs.fileno(),
        cwd="/",
        env={"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"},
        start_new_session=True,
    )
    _workers[worker.pid] = worker
    return worker.pid


def end_worker(pid: int) -> None:
    """Waits for the end of a worker whose connection is closed, and kills it if it takes too long. The worker ends its
    box."""
    worker = _workers.pop(pid)
    try:
        worker.wait(CLOSE_SECONDS)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.wait()


class Slot:
    """Starts its worker on the first request, and again after a failure. Use it from one thread at a time.

    Raises SandboxFailure if the worker, its box or its node is lost.
    """

    def __init__(self, tier: Tier, node: Node | None = None, landlock_abi: int = NEWEST_LANDLOCK) -> None:
        self.node: Node = node or ThisNode()
        self._tier, self._landlock_abi = tier, landlock_abi
        self._worker: tuple[Connection, int] | None = None

    def run_program(self, program: Program, inputs: Sequence[bytes], stop_on: StopOn | None) -> ProgramRun:
        seconds = COMPILER.wall_seconds + program.limits.patience_seconds
        tests: list[TestRun] = []
        self._start()
        head = {"kind": "program", "language": program.language, "mode": program.mode, "entry": program.entry}
        source = program.source.encode(errors="surrogatepass")
        compiled, _ = self._ask(head | {"limits": vars(program.limits)}, source, seconds)
        if compiled["compile_error"] is not None:
            return ProgramRun(compiled["compile_error"], ())
        for index, test in enumerate(inputs):
            secret = secrets.token_hex(16).encode() + b"\n" if program.mode == "assert" else b""
            answer, output = self._ask({"kind": "test"}, secret + test, seconds)
            run = _test_run(answer, output)
            tests.append(_asserted(run, secret.strip()) if secret else run)
            if answer["last"]:
                return ProgramRun(None, tuple(tests))
            if stop_on is not None and stop_on(index, tests[-1]):
                break
        self._send({"kind": "end"})
        return ProgramRun(None, tuple(tests))

    def run_command(
        self, argv: Sequence[str], workspace: Folder, limits: Limits, stdin: bytes, environment: Mapping[str, str]
    ) -> CommandRun:
        head: dict[str, Any] = {"kind": "command", "argv": list(argv), "workspace": str(workspace.path)}
        head |= {"first": vars(workspace.first), "hidden": list(workspace.hidden)}
        head |= {"limits": vars(limits), "environment": dict(environment)}
        self._start()
        answer, output = self._ask(head, stdin, limits.patience_seconds)
        status, code = Status(answer["status"]), answer["exit_code"]
        text = output.decode(errors="replace")
        return CommandRun(status, code, text, answer["cpu_seconds"], answer["wall_seconds"])

    def hang_up(self) -> None:
        """Closes the connection, so that the worker begins to end. Only `close` may follow."""
        if self._worker:
            self._worker[0].close()

    def close(self) -> None:
        """Ends the worker. The worker ends its box."""
        if self._worker is None:
            return
        (connection, pid), self._worker = self._worker, None
        connection.close()
        with suppress(NodeLost):  # the worker ended with its node
            self.node.call(end_worker, pid)

    def _ask(self, head: Mapping[str, Any], body: bytes, seconds: float) -> Frame:
        self._send(head, body)
        answer = self._receive(seconds + SLACK_SECONDS)
        if "unavailable" in answer[0]:
            raise CompilerUnavailable(answer[0]["unavailable"])
        return answer

    def _send(self, head: Mapping[str, Any], body: bytes = b"") -> None:
        assert self._worker
        try:
            write_frame(self._worker[0].fileno(), head, body)
        except ConnectionError:
            raise self._failure("the worker died") from None

    def _receive(self, seconds: float) -> Frame:
        assert self._worker
        connection, _ = self._worker
        if not connection.poll(seconds):
            raise self._failure(f"no answer from the worker in {seconds:g} s")
        try:
            answer = read_frame(connection.fileno())
        except (EOFError, ConnectionError, json.JSONDecodeError):
            raise self._failure("the worker died") from None
        if "lost" in answer[0]:
            raise self._failure(answer[0]["lost"])
        return answer

    def _failure(self, what: str) -> SandboxFailure:
        self.close()
        return SandboxFailure(what)

    def _start(self) -> None:
        """Starts a worker unless one is alive. An idle worker sends nothing, so anything readable is its end."""
        if self._worker and not self._worker[0].poll():
            return
        self.close()
        try:
            self._worker = self.node.open(launch_worker, self._tier, self._landlock_abi)
        except (NodeLost, OSError) as error:
            raise SandboxFailure(f"no worker could be started on {self.node.host}: {error}") from error
        self._receive(SLACK_SECONDS)


def _test_run(answer: Mapping[str, Any], output: bytes) -> TestRun:
    times = answer["cpu_seconds"], answer["wall_seconds"]
    return TestRun(Status(answer["status"]), answer["exit_code"], *times, output, answer["errors"])


def _asserted(run: TestRun, secret: bytes) -> TestRun:
    """The run of assertions, which passed if their process shows the secret. The program's process never had it."""
    if run.status is Status.OK and run.output != secret:
        errors = f"{run.errors}\nthe test did not come to its end"
        return replace(run, status=Status.RUNTIME_ERROR, output=b"", errors=errors)
    return replace(run, output=b"")
