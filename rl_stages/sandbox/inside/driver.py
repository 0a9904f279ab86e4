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
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from cascade_rl.engine.core.parent_death import die_with_parent
from cascade_rl.rl_stages.sandbox.inside.cpp_program import CompileError, CppProgram
from cascade_rl.rl_stages.sandbox.inside.frames import Frame, read_exactly, read_frame, read_head, write_frame
from cascade_rl.rl_stages.sandbox.inside.python_program import PythonProgram
from cascade_rl.rl_stages.sandbox.limits import Limits
from cascade_rl.rl_stages.sandbox.memory_file import memory_file
from cascade_rl.rl_stages.sandbox.walls import confinement, landlock, seccomp

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
            _, length = read_head(0)
        except EOFError:
            return
        write_frame(1, *box.test(program, length))


class Box:
    """The box and its program, as the worker's first frame describes them."""

    def __init__(self, head: dict[str, Any]) -> None:
        self._head = head
        self._limits = Limits(**head["limits"])
        self._readable: list[str] = head["readable"]
        self._namespaces: bool = head["namespaces"]
        self._rules = None if self._namespaces else landlock.ruleset(self._readable, (), head["landlock_abi"])
        seccomp.memory_filter()  # before the tests' processes are forked
        sys.path += head["packages"]

    def compile(self, source: bytes) -> PythonProgram | CppProgram:
        if self._head["language"] == "python":
            return PythonProgram(source, self._head["mode"], self._head["entry"])
        scratch = Path(self._head["scratch"]) / "build"
        scratch.mkdir()
        return CppProgram(source, scratch, self._head["include"], self._compiler_confinement(str(scratch)))

    def test(self, program: PythonProgram | CppProgram, length: int) -> Frame:
        """The report on a test whose `length` bytes wait in stdin."""
        start = JudgedProcess if program.judged else TestProcess
        run = start(program, length, self._limits, self._rules)
        run.wait()
        self._kill_strays()
        return run.report()

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

    def __init__(self, program: PythonProgram | CppProgram, length: int, limits: Limits, rules: int | None) -> None:
        self._limits, self._rules, self._status = limits, rules, "ok"
        output, errors = os.pipe(), os.pipe()
        self._output, self._errors = output[0], errors[0]
        self._read = {self._output: bytearray(), self._errors: bytearray()}
        self._started = time.monotonic()
        self._pids = self._start(program, length, output[1], errors[1])
        for descriptor in (output[1], errors[1]):
            os.close(descriptor)

    def _start(self, program: Any, length: int, output: int, errors: int) -> list[int]:
        """Starts the processes. The test has ended when the first of them has."""
        test = read_exactly(0, length)
        stdin = memory_file(program.stdin(test))
        try:
            return [self._forked((stdin, output, errors), program.stack_mib, lambda: program.run(test))]
        finally:
            os.close(stdin)

    def _forked(
        self, streams: tuple[int, int, int], stack_mib: int, run: Callable[[], NoReturn], dumpable: bool = True
    ) -> int:
        pid = os.fork()
        if pid == 0:
            try:
                _become(streams, self._limits, stack_mib, self._rules, dumpable)
                run()
            finally:
                os._exit(127)
        return pid

    def wait(self) -> None:
        """Waits until the process ends or is killed. Does not wait for pipes that its children hold open."""
        ended = os.pidfd_open(self._pids[0])
        for descriptor in self._read:
            os.set_blocking(descriptor, False)
        open_pipes = set(self._read)
        while self._status == "ok":
            ready = select.select([ended, *open_pipes], [], [], TICK_SECONDS)[0]
            if sum(map(_cpu_seconds, self._pids)) > self._limits.cpu_seconds:
                self._status = "time limit"
            else:
                self._check_wall(time.monotonic() - self._started)
            open_pipes -= {descriptor for descriptor in open_pipes.intersection(ready) if self._drain(descriptor)}
            if ended in ready:
                break
        for descriptor in open_pipes if self._status == "ok" else ():
            self._drain(descriptor)
        for pid in self._pids[1:] if self._status == "ok" else self._pids:
            os.kill(pid, signal.SIGKILL)
        ends = [os.wait4(pid, 0) for pid in self._pids]
        self._wait_status = ends[0][1]
        self._cpu_seconds = sum(usage.ru_utime + usage.ru_stime for _, _, usage in ends)
        self._wall_seconds = time.monotonic() - self._started
        for descriptor in (ended, *self._read):
            os.close(descriptor)

    def _check_wall(self, seconds: float) -> None:
        if seconds < self._limits.wall_seconds:
            return
        queued = _queued_seconds(self._pids)
        if queued is not None and seconds - queued > self._limits.wall_seconds:
            self._status = "time limit"
        elif seconds > self._limits.patience_seconds:
            self._status = "time limit" if queued is None else STARVED

    def report(self) -> Frame:
        errors = bytes(self._read[self._errors][-ERRORS_BYTES:])
        head = {
            "status": self._verdict(errors),
            "exit_code": os.waitstatus_to_exitcode(self._wait_status),
            "cpu_seconds": self._cpu_seconds,
            "wall_seconds": self._wall_seconds,
            "errors": errors.decode(errors="replace"),
        }
        return head, bytes(self._read[self._output][: self._limits.output_bytes])

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


class JudgedProcess(TestProcess):
    """A test that consists of assertions. They run in a second process, which asks the program's process.

    The program's is forked first, and waits for its first question. Only then, and only by the judge, is the test read,
    so that the program finds neither the assertions nor what the judge shows at their end, in any memory or pipe.
    """

    def _start(self, program: Any, length: int, output: int, errors: int) -> list[int]:
        questions, answers = os.pipe(), os.pipe()
        asked = self._forked((questions[0], answers[1], errors), program.stack_mib, lambda: program.run(b""))
        for descriptor in (questions[0], answers[1]):
            os.close(descriptor)

        frames = os.dup(0)
        judge = partial(_judge, program, frames, length, questions[1])
        judging = self._forked((answers[0], output, errors), program.stack_mib, judge, dumpable=False)
        for descriptor in (frames, questions[1], answers[0]):
            os.close(descriptor)
        return [judging, asked]


def _judge(program: PythonProgram, frames: int, length: int, questions: int) -> NoReturn:
    program.judge(read_exactly(frames, length), questions)


def _become(streams: tuple[int, int, int], limits: Limits, stack_mib: int, rules: int | None, dumpable: bool) -> None:
    """Confines the forked process. One that is not dumpable cannot open /dev/stdin, and no other can look into it."""
    os.setsid()
    die_with_parent()
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    confinement.limit_resources(limits, stack_mib)
    confinement.set_dumpable(dumpable)
    if rules is None:
        confinement.confine_memory()
    else:
        confinement.confine_process(rules)


def _cpu_seconds(pid: int) -> float:
    """User and system time of a process that has not been reaped, from its CPU clock (the kernel's CPUCLOCK_SCHED)."""
    return time.clock_gettime(~pid << 3 | 2)


def _queued_seconds(pids: list[int]) -> float | None:
    """How long processes were ready to run but had no processor. None if there is no /proc."""
    try:
        return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) for pid in pids) / 1e9
    except OSError:
        return None
