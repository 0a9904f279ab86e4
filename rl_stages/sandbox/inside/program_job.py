"""A worker's side of one program: asks the driver for one test after another. A test may kill the driver."""

from __future__ import annotations

import os
import time
from typing import Any

from cascade_rl.rl_stages.sandbox.inside.box import Box, TooMuchMemory
from cascade_rl.rl_stages.sandbox.inside.frames import Frame, read_frame, write_frame
from cascade_rl.rl_stages.sandbox.limits import Limits
from cascade_rl.rl_stages.sandbox.walls.confinement import COMPILER

START_SECONDS = 60.0
GRACE_SECONDS = 10.0  # in addition to the wall time that the driver itself enforces


def start(box: Box, driver: bytes) -> None:
    """Sends the driver to the box and waits until it is ready. Raises BoxLost."""
    try:
        os.write(box.stdin, driver)
        if box.answers(time.monotonic() + START_SECONDS, COMPILER.memory_mib):
            read_frame(box.stdout)
            return
    except (EOFError, BrokenPipeError):
        pass
    raise box.lost("the box did not start")


def compile_program(box: Box, head: dict[str, Any], source: bytes, limits: Limits) -> Frame:
    """Compiles the program. A compiler that crashes or exceeds a limit counts as an error of the program."""
    write_frame(box.stdin, head, source)
    within = COMPILER if head["language"] == "cpp" else limits
    try:
        if box.answers(time.monotonic() + within.wall_seconds + GRACE_SECONDS, within.memory_mib):
            return read_frame(box.stdout)
        failure = "did not come to its end"
    except TooMuchMemory:
        failure = f"used more than {within.memory_mib} MiB"
    except EOFError:
        failure = "crashed"
    return {"compile_error": f"the compiler {failure}"}, b""


def run_test(box: Box, test: bytes, limits: Limits) -> Frame:
    """Runs one test. `last` is true if the box cannot run another one. Raises BoxLost."""
    started = time.monotonic()
    write_frame(box.stdin, {}, test)
    try:
        if box.answers(started + limits.patience_seconds + GRACE_SECONDS, limits.memory_mib):
            head, output = read_frame(box.stdout)
            if head["status"] == "starved":
                raise box.lost("the machine is too busy: no processor for most of the wall time")
            return head | {"last": False}, output
        if box.starved(limits.patience_seconds):
            raise box.lost("the machine is too busy: the driver did not answer")
        return _end("time limit", started, "the program stopped its judge"), b""
    except TooMuchMemory:
        return _end("memory limit", started, f"all its processes together: more than {limits.memory_mib} MiB"), b""
    except EOFError:
        return _end("runtime error", started, "the program killed its judge"), b""


def _end(status: str, started: float, errors: str) -> dict[str, Any]:
    seconds = time.monotonic() - started
    return {
        "status": status,
        "exit_code": -9,
        "cpu_seconds": 0.0,
        "wall_seconds": seconds,
        "errors": errors,
        "last": True,
    }
