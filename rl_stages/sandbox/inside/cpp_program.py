"""A C++ program under test: compiled once, executed from memory for each input. This module runs in the box."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

FLAGS = ("-std=c++20", "-O2", "-pipe")
WALL_SECONDS = 100.0


class CompileError(Exception):
    """The program does not compile. The message is the compiler's."""


class CppProgram:
    """A compiled C++ program. Raises CompileError."""

    stack_mib = 256
    judged = False

    def __init__(self, source: bytes, scratch: Path, include: list[str], confine: Callable[[], None]) -> None:
        program = scratch / "program"
        (scratch / "main.cpp").write_bytes(source)
        command = ["g++", *FLAGS, *(f"-I{folder}" for folder in include), "-o", str(program), "main.cpp"]
        environment = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "TMPDIR": str(scratch)}
        try:
            built = subprocess.run(
                command, cwd=scratch, env=environment, preexec_fn=confine, capture_output=True, timeout=WALL_SECONDS
            )
        except subprocess.TimeoutExpired as late:
            raise CompileError(f"the compiler did not end in {WALL_SECONDS:g} s") from late
        if built.returncode:
            raise CompileError(built.stderr[:4000].decode(errors="replace") or f"exit code {built.returncode}")
        self._executable = _in_memory(program)
        shutil.rmtree(scratch, ignore_errors=True)

    def stdin(self, test: bytes) -> bytes:
        return test

    def run(self, _: bytes) -> NoReturn:
        """Runs in the test's process, after its standard streams are set up."""
        os.execve(self._executable, ["program"], {})


def _in_memory(program: Path) -> int:
    descriptor = os.memfd_create("program")
    with program.open("rb") as file, open(descriptor, "wb", closefd=False) as copy:
        shutil.copyfileobj(file, copy)
    return descriptor
