"""A worker's side of one program: asks the driver for one test after another. A test may kill the driver."""

from __future__ import annotations

import os
import time
from typing import Any

from cascade_rl.rl_stages.sandbox.inside.box import Box
from cascade_rl.rl_stages.sandbox.inside.frames import Frame, Malformed, write_frame
from cascade_rl.rl_stages.sandbox.inside.watch import BeyondLimit, Watch
from cascade_rl.rl_stages.sandbox.limits import Limits

START_SECONDS = 60.0
GRACE_SECONDS = 10.0  # in addition to the wall time that the driver itself enforces
SPARE_SECONDS = 2.0  # of processor time; after one second more than its limit the kernel ends a process
HEAD_BYTES = 1 << 16  # of a frame of the driver, which cuts what it quotes
STARVED = "starved"
_REPORT = {"status": str, "exit_code": int, "cpu_seconds": float, "wall_seconds": float, "errors": str}
_STATUSES = ("ok", "runtime error", "time limit", "memory limit", "output limit", STARVED)


def start(box: Box, driver: bytes, watch: Watch) -> None:
    """Sends the driver to the box and waits until it is ready. Raises BoxLost."""
    try:
        os.write(box.channel, driver)
        if box.answer(time.monotonic() + START_SECONDS, watch, HEAD_BYTES):
            return
    except (EOFError, ConnectionError):
        pass
    raise box.lost("the box did not start")


def compile_program(box: Box, head: dict[str, Any], source: bytes, limits: Limits, watch: Watch) -> Frame:
    """Compiles the program. A compiler that crashes or exceeds a limit counts as an error of the program."""
    try:
        write_frame(box.channel, head, source)
        answer = box.answer(time.monotonic() + limits.wall_seconds + GRACE_SECONDS, watch, HEAD_BYTES)
        if answer:
            return {"compile_error": answer[0].get("compile_error")}, b""
        failure = "did not come to its end"
    except BeyondLimit as beyond:
        failure = f"used too much, {beyond}"
    except (EOFError, ConnectionError, Malformed):
        failure = "crashed"
    return {"compile_error": f"the compiler {failure}"}, b""


def run_test(box: Box, test: bytes, limits: Limits, client: int) -> Frame:
    """Runs one test. `last` is true if the box cannot run another one.

    Raises BoxLost if the machine had no processor for it. Whatever else ends the box is the program's doing.
    """
    watch = Watch(client, limits, SPARE_SECONDS)
    deadline = time.monotonic() + limits.patience_seconds + GRACE_SECONDS
    try:
        write_frame(box.channel, {}, test)
        answer = box.answer(deadline, watch, limits.output_bytes + HEAD_BYTES)
    except BeyondLimit as beyond:
        return _end(beyond.status, watch, str(beyond)), b""
    except (EOFError, ConnectionError):
        return _end("runtime error", watch, "the program killed its judge"), b""
    except Malformed as malformed:
        return _end("runtime error", watch, f"the program disturbed its judge: {malformed}"), b""
    if answer is None or answer[0].get("status") == STARVED:
        if watch.starved():
            raise box.lost("the machine is too busy: no processor for most of the wall time")
        return _end("time limit", watch, "the program stopped its judge or itself"), b""
    if not _is_report(answer[0]):
        return _end("runtime error", watch, "the program disturbed its judge"), b""
    return answer[0] | {"last": False}, answer[1]


def _is_report(head: dict[str, Any]) -> bool:
    typed = {key for key, kind in _REPORT.items() if type(head.get(key)) is kind}
    return typed == set(_REPORT) == set(head) and head["status"] in _STATUSES


def _end(status: str, watch: Watch, errors: str) -> dict[str, Any]:
    return {
        "status": status,
        "exit_code": -9,
        "cpu_seconds": watch.cpu_seconds,
        "wall_seconds": watch.wall_seconds,
        "errors": errors,
        "last": True,
    }
