"""A program to judge, and the results of its run."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from cascade_rl.rl_stages.sandbox.limits import Limits

Language = Literal["python", "cpp"]
Mode = Literal["stdin", "call", "assert"]


@dataclass(frozen=True, kw_only=True)
class Program:
    """Untrusted source, and how its tests call it. It does not contain the expected outputs: they stay outside the box.

    stdin   a test's input is the program's standard input; the output is its standard output
    call    (Python) the input is a JSON list of arguments of `entry`, a function or `Class.method`; the output is the
            result as JSON. Tuples, sets (sorted if possible) and arrays become lists. Linked lists and binary trees
            (`ListNode`, `TreeNode`) become lists in LeetCode's notation. What the program prints is in `errors`
    assert  (Python) the input is source that calls `entry`. It passes if it runs to its end. It has its own process,
            in which `entry` asks the program's process: arguments and results are values of Python's own types
    """

    language: Language
    source: str
    mode: Mode = "stdin"
    entry: str | None = None
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if self.mode != "stdin" and not self.entry:
            raise ValueError(f"mode {self.mode!r}: expected `entry`, the name of a function, found none")
        if self.language == "cpp" and self.mode != "stdin":
            raise ValueError(f"expected mode 'stdin' for C++, found {self.mode!r}")


class Status(StrEnum):
    OK = "ok"
    RUNTIME_ERROR = "runtime error"
    TIME_LIMIT = "time limit"
    MEMORY_LIMIT = "memory limit"
    OUTPUT_LIMIT = "output limit"


@dataclass(frozen=True)
class TestRun:
    """One test of a program. `exit_code` is negative for a signal. `errors` is the end of its stderr."""

    __test__ = False  # pytest must not collect this class

    status: Status
    exit_code: int
    cpu_seconds: float
    wall_seconds: float
    output: bytes
    errors: str


@dataclass(frozen=True)
class ProgramRun:
    """`tests` are in the order of the inputs. There are fewer tests than inputs if `stop_on` ended the run, or if a
    test ended its whole box: the program killed its judge, or its processes together used too much memory."""

    compile_error: str | None
    tests: tuple[TestRun, ...]


@dataclass(frozen=True)
class CommandRun:
    """A command. `output` is its stdout and stderr, interleaved as written. `exit_code` is negative for a signal."""

    status: Status
    exit_code: int
    output: str
    cpu_seconds: float
    wall_seconds: float
