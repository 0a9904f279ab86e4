"""A program to judge, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from cascade_rl.rl_stages.sandbox.limits import Limits

Language = Literal["python", "cpp"]
Mode = Literal["stdin", "call", "assert"]


@dataclass(frozen=True, kw_only=True)
class Program:
    """Untrusted source with the way its tests reach it. Expected outputs are no part of it: they stay outside.

    stdin   a test's input is the program's standard input, its output the standard output
    call    (Python) the input is a JSON list of arguments of `entry`, a function or `Class.method`; the output is the
            JSON of the result: tuples, sets (sorted where that is possible) and arrays become lists, linked lists and
            binary trees (`ListNode`, `TreeNode`) the lists that LeetCode writes. What the program prints is in `errors`
    assert  (Python) the input is source that runs in the program's module, a unit of its own. It passes when it comes
            to its end, which a nonce shows. Weaker than the others: the assertions share a process with the program
    """

    language: Language
    source: str
    mode: Mode = "stdin"
    entry: str | None = None
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if self.mode == "call" and not self.entry:
            raise ValueError("mode 'call': expected `entry`, the name of a function or Class.method, found none")
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
    """One test of a program. `exit_code` is negative for a signal, `errors` the end of its stderr."""

    __test__ = False  # nothing for pytest to collect

    status: Status
    exit_code: int
    cpu_seconds: float
    wall_seconds: float
    output: bytes
    errors: str


@dataclass(frozen=True)
class ProgramRun:
    """`tests` in the order of the inputs; it is shorter than these after `stop_on`, and after a test that took its
    whole box with it (a program that killed its judge, or whose processes together used too much memory)."""

    compile_error: str | None
    tests: tuple[TestRun, ...]


@dataclass(frozen=True)
class CommandRun:
    """A command; `output` is its stdout and stderr as they came. `exit_code` is negative for a signal."""

    status: Status
    exit_code: int
    output: str
    cpu_seconds: float
    wall_seconds: float
