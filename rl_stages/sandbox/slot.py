"""The client's end of one worker process."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cascade_rl.rl_stages.sandbox.confinement import COMPILER
from cascade_rl.rl_stages.sandbox.errors import CompilerUnavailable, SandboxFailure
from cascade_rl.rl_stages.sandbox.frames import Frame, read_frame, write_frame
from cascade_rl.rl_stages.sandbox.limits import Limits
from cascade_rl.rl_stages.sandbox.program import CommandRun, Program, ProgramRun, Status, TestRun
from cascade_rl.rl_stages.sandbox.tier import Tier

WORKER = "cascade_rl.rl_stages.sandbox.worker"
SLACK_SECONDS = 120.0  # beyond what the worker waits for: starting on a loaded machine, precompiling a header
CLOSE_SECONDS = 5.0

StopOn = Callable[[int, TestRun], bool]


class Slot:
    """Starts its worker with the first request, and again after a failure. For one thread at a time.

    Raises SandboxFailure where the worker, or the box in it, is lost.
    """

    def __init__(self, tier: Tier) -> None:
        self._tier = tier
        self._process: subprocess.Popen[bytes] | None = None

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
            answer, output = self._ask({"kind": "test"}, test, seconds)
            tests.append(_test_run(answer, output))
            if answer["last"]:
                return ProgramRun(None, tuple(tests))
            if stop_on is not None and stop_on(index, tests[-1]):
                break
        self._send({"kind": "end"})
        return ProgramRun(None, tuple(tests))

    def run_command(
        self, argv: Sequence[str], workspace: Path, limits: Limits, stdin: bytes, environment: Mapping[str, str]
    ) -> CommandRun:
        head: dict[str, Any] = {"kind": "command", "argv": list(argv), "workspace": str(workspace.resolve(strict=True))}
        head |= {"limits": vars(limits), "environment": dict(environment)}
        self._start()
        answer, output = self._ask(head, stdin, limits.patience_seconds)
        status, code = Status(answer["status"]), answer["exit_code"]
        text = output.decode(errors="replace")
        return CommandRun(status, code, text, answer["cpu_seconds"], answer["wall_seconds"])

    def close(self) -> None:
        """Ends the worker, which ends its box."""
        if self._process is None:
            return
        process, self._process = self._process, None
        assert process.stdin and process.stdout
        process.stdin.close()
        try:
            process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def _ask(self, head: Mapping[str, Any], body: bytes, seconds: float) -> Frame:
        self._send(head, body)
        answer = self._receive(seconds + SLACK_SECONDS)
        if "unavailable" in answer[0]:
            raise CompilerUnavailable(answer[0]["unavailable"])
        return answer

    def _send(self, head: Mapping[str, Any], body: bytes = b"") -> None:
        assert self._process and self._process.stdin
        try:
            write_frame(self._process.stdin.fileno(), head, body)
        except BrokenPipeError:
            raise self._failure("the worker died") from None

    def _receive(self, seconds: float) -> Frame:
        assert self._process and self._process.stdout
        output = self._process.stdout.fileno()
        if not select.select([output], [], [], seconds)[0]:
            raise self._failure(f"no answer from the worker in {seconds:g} s")
        try:
            answer = read_frame(output)
        except (EOFError, json.JSONDecodeError):
            raise self._failure("the worker died") from None
        if "lost" in answer[0]:
            raise self._failure(answer[0]["lost"])
        return answer

    def _failure(self, what: str) -> SandboxFailure:
        self.close()
        return SandboxFailure(what)

    def _start(self) -> None:
        """Where none is alive. With an environment that has no secrets to leak."""
        if self._process and self._process.poll() is None:
            return
        self.close()
        self._process = subprocess.Popen(
            [sys.executable, "-m", WORKER, self._tier, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            cwd="/",
            env={"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"},
            start_new_session=True,
        )
        self._receive(SLACK_SECONDS)


def _test_run(answer: Mapping[str, Any], output: bytes) -> TestRun:
    times = answer["cpu_seconds"], answer["wall_seconds"]
    return TestRun(Status(answer["status"]), answer["exit_code"], *times, output, answer["errors"])
