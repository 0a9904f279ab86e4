"""The trusted process in a box: compiles a program, then forks for each input. It uses only the standard library.

The worker writes frames to its stdin and reads frames from its stdout. Its report on a test is only data: a program
that forges one gains nothing over printing the same output. Expected outputs never enter the box.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from cascade_rl.engine.core.parent_death import die_with_parent
from cascade_rl.rl_stages.sandbox.inside.cpp_program import CompileError, CppProgram
from cascade_rl.rl_stages.sandbox.inside.frames import Frame, read_frame, write_frame
from cascade_rl.rl_stages.sandbox.inside.python_program import PythonProgram
from cascade_rl.rl_stages.sandbox.limits import Limits
from cascade_rl.rl_stages.sandbox.walls import confinement, landlock

ERRORS_BYTES = 2000  # at the end of stderr, which are reported
STARVED = "starved"
TICK_SECONDS = 0.05


def main() -> None:
    confinement.set_dumpable(False)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # process 1 gets only the signals that it handles
    write_frame(1, {"ready": True})
    head, source = read_frame(0)
    box = Box(head)
    try:
        program = box.compile(source)
    except (CompileError, SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
        write_frame(1, {"compile_error": f"{type(error).__name__}: {error}"[:4000]})
        return
    write_frame(1, {"compile_error": None})
    while True:
        try:
            _, test = read_frame(0)
        except EOFError:
            return
        write_frame(1, *box.test(program, test))


class Box:
    """The box and its program, as the worker's first frame describes them."""

    def __init__(self, head: dict[str, Any]) -> None:
        self._head = head
        self._limits = Limits(**head["limits"])
        self._readable: list[str] = head["readable"]
        self._namespaces: bool = head["namespaces"]
        self._rules = None if self._namespaces else landlock.ruleset(self._readable, (), head["landlock_abi"])
        sys.path += head["packages"]

    def compile(self, source: bytes) -> PythonProgram | CppProgram:
        if self._head["language"] == "python":
            return PythonProgram(source, self._head["mode"], self._head["entry"])
        scratch = Path(self._head["scratch"]) / "build"
        scratch.mkdir()
        return CppProgram(source, scratch, self._head["include"], self._compiler_confinement(str(scratch)))

    def test(self, program: PythonProgram | CppProgram, test: bytes) -> Frame:
        run = TestProcess(program, test, self._limits, self._rules)
        run.wait()
        self._kill_strays()
        return run.report(program)

    def _compiler_confinement(self, scratch: str) -> Any:
        if self._namespaces:
            return lambda: confinement.limit_resources(confinement.COMPILER)
        abi = self._head["landlock_abi"]
        return confinement.command_confinement(self._readable, [scratch], confinement.COMPILER, abi)

    def _kill_strays(self) -> None:
        """Kills and reaps all other processes if this is process 1 of its namespace."""
        if os.getpid() != 1:
            return
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        with suppress(ChildProcessError):
            while True:
                os.wait()


class TestProcess:
    """One test of a program, from its fork to its report."""

    def __init__(self, program: PythonProgram | CppProgram, test: bytes, limits: Limits, rules: int | None) -> None:
        self._limits, self._status = limits, "ok"
        stdin = _memory_file(program.stdin(test))
        pipes = os.pipe(), os.pipe()
        self._started = time.monotonic()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                _become(program, test, limits, rules, (stdin, pipes[0][1], pipes[1][1]))
            finally:
                os._exit(127)
        for descriptor in (stdin, pipes[0][1], pipes[1][1]):
            os.close(descriptor)
        self._output, self._errors = pipes[0][0], pipes[1][0]
        self._read = {self._output: bytearray(), self._errors: bytearray()}

    def wait(self) -> None:
        """Waits until the process ends or is killed. Does not wait for pipes that its children hold open."""
        ended = os.pidfd_open(self._pid)
        for descriptor in self._read:
            os.set_blocking(descriptor, False)
        open_pipes = set(self._read)
        while self._status == "ok":
            ready = select.select([ended, *open_pipes], [], [], TICK_SECONDS)[0]
            if _cpu_seconds(self._pid) > self._limits.cpu_seconds:
                self._status = "time limit"
            else:
                self._check_wall(time.monotonic() - self._started)
            open_pipes -= {descriptor for descriptor in open_pipes.intersection(ready) if self._drain(descriptor)}
            if ended in ready:
                break
        for descriptor in open_pipes if self._status == "ok" else ():
            self._drain(descriptor)
        if self._status != "ok":
            os.kill(self._pid, signal.SIGKILL)
        self._wait_status, self._usage = os.wait4(self._pid, 0)[1:]
        self._wall_seconds = time.monotonic() - self._started
        for descriptor in (ended, *self._read):
            os.close(descriptor)

    def _check_wall(self, seconds: float) -> None:
        if seconds < self._limits.wall_seconds:
            return
        queued = _queued_seconds(self._pid)
        if queued is not None and seconds - queued > self._limits.wall_seconds:
            self._status = "time limit"
        elif seconds > self._limits.patience_seconds:
            self._status = "time limit" if queued is None else STARVED

    def report(self, program: PythonProgram | CppProgram) -> Frame:
        errors = bytes(self._read[self._errors][-ERRORS_BYTES:])
        output: bytes | None = bytes(self._read[self._output][: self._limits.output_bytes])
        status, code = self._verdict(errors), os.waitstatus_to_exitcode(self._wait_status)
        if status == "ok":
            output = program.result(output or b"")
            if output is None:
                status, errors = "runtime error", errors + b"\nthe test did not come to its end"
        head = {
            "status": status,
            "exit_code": code,
            "cpu_seconds": self._cpu_seconds,
            "wall_seconds": self._wall_seconds,
            "errors": errors.decode(errors="replace"),
        }
        return head, output or b""

    @property
    def _cpu_seconds(self) -> float:
        return self._usage.ru_utime + self._usage.ru_stime

    def _verdict(self, errors: bytes) -> str:
        if self._status != "ok":
            return self._status
        code = os.waitstatus_to_exitcode(self._wait_status)
        if self._cpu_seconds > self._limits.cpu_seconds or code == -signal.SIGXCPU:
            return "time limit"
        if code == 0:
            return "ok"
        return "memory limit" if b"MemoryError" in errors or b"std::bad_alloc" in errors else "runtime error"

    def _drain(self, descriptor: int) -> bool:
        """Reads what is available. True at the end of the pipe."""
        read = self._read[descriptor]
        while len(read) <= self._limits.output_bytes:
            try:
                chunk = os.read(descriptor, 1 << 16)
            except BlockingIOError:
                return False
            if not chunk:
                return True
            read += chunk
        self._status = "output limit"
        return False


def _become(
    program: PythonProgram | CppProgram, test: bytes, limits: Limits, rules: int | None, streams: tuple[int, int, int]
) -> NoReturn:
    """Confines the forked process and runs the program in it."""
    os.setsid()
    die_with_parent()
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    confinement.limit_resources(limits, program.stack_mib)
    confinement.set_dumpable(True)  # otherwise it cannot open /dev/stdin
    if rules is None:
        confinement.confine_memory()
    else:
        confinement.confine_process(rules)
    program.run(test)


def _memory_file(content: bytes) -> int:
    descriptor = os.memfd_create("stdin")
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _cpu_seconds(pid: int) -> float:
    """User and system time of a process that has not been reaped, from its CPU clock (the kernel's CPUCLOCK_SCHED)."""
    return time.clock_gettime(~pid << 3 | 2)


def _queued_seconds(pid: int) -> float | None:
    """How long a process was ready to run but had no processor. None if there is no /proc."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return None
