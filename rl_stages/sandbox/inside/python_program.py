"""A Python program under test: compiled once, run in a new process for each input. This module runs in the box.

It has what the graders of its data give it: their names (preamble.py), their recursion limit (recursion.py), and
integers of any length, as up to Python 3.10.
"""

from __future__ import annotations

import atexit
import builtins
import gc
import importlib
import json
import os
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import MethodType, ModuleType, TracebackType
from typing import Any, NoReturn

from cascade_rl.rl_stages.sandbox.inside import assertions, preamble, recursion, values
from cascade_rl.rl_stages.sandbox.walls.confinement import STACK_MIB

FILE, TEST_FILE = "main.py", "test.py"


class PythonProgram:
    """`source` in one of the modes of `Program`. Raises SyntaxError and whatever else `compile` raises."""

    stack_mib = STACK_MIB

    def __init__(self, source: bytes, mode: str, entry: str | None) -> None:
        self._mode, self._entry = mode, str(entry)
        self.judged = mode == "assert"
        self._code = compile(source, FILE, "exec", dont_inherit=True)
        self._names = (
            preamble.names() if preamble.needed(source, FILE) else {}
        )  # before the tests' processes are forked
        if b"numpy" in source:
            _import_if_there("numpy")
        _prepare()

    def stdin(self, test: bytes) -> bytes:
        return test if self._mode == "stdin" else b""

    def run(self, test: bytes) -> NoReturn:
        """Runs in the test's process, after its standard streams are set up."""
        os.closerange(3, 256)
        self._end_with(lambda: getattr(self, f"_run_{self._mode}")(test))

    def judge(self, test: bytes, questions: int) -> NoReturn:
        """Runs assertions, without the program: a stand-in asks its process through `questions` and stdin. Once all
        hold, the output is the first line of `test`."""
        os.dup2(questions, 3)
        os.closerange(4, 256)
        self._end_with(lambda: self._judge(test))

    def _end_with(self, work: Callable[[], None]) -> NoReturn:
        try:
            code = _exit_code_of(work)
            threading._shutdown()  # type: ignore[attr-defined]  # joins the threads, as at the end of any program
            atexit._run_exitfuncs()
            _flush()
        except BaseException as error:
            traceback.print_exception(error.with_traceback(_of_the_program(error.__traceback__)), limit=-4)
            code = 1
            with suppress(OSError, ValueError):  # nobody reads it any more
                _flush()
        os._exit(code & 255)

    def _run_stdin(self, _: bytes) -> None:
        self._executed("__main__")

    def _run_call(self, test: bytes) -> None:
        results = _divert_prints()
        arguments = json.loads(test)
        function = self._function()
        notes = _annotations(function, len(arguments))
        result = function(*map(values.argument, arguments, notes))
        note = getattr(function, "__annotations__", {}).get("return", notes)
        os.write(results, json.dumps(values.result(result, note)).encode())

    def _run_assert(self, _: bytes) -> None:
        answers, questions = _divert_prints(), os.dup(0)
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        with open(questions, "rb") as asked, open(answers, "wb", 0) as told:
            assertions.answer(self._function, asked, told)
        os._exit(0)  # no thread of the program goes on

    def _judge(self, test: bytes) -> None:
        results = _divert_prints()
        shown, _, source = test.partition(b"\n")
        with open(3, "wb", 0) as questions, open(os.dup(0), "rb") as answers:
            function = assertions.stand_in(self._entry, questions, answers)
            exec(compile(source, TEST_FILE, "exec", dont_inherit=True), _module("solution") | {self._entry: function})
        os.write(results, shown)

    def _function(self) -> Any:
        return _find(self._executed("solution"), self._entry)

    def _executed(self, name: str) -> dict[str, Any]:
        vars(builtins).update(self._names)
        vars(builtins).update(ListNode=values.ListNode, TreeNode=values.TreeNode)
        module = _module(name)
        exec(self._code, module)
        return module


def _import_if_there(module: str) -> None:
    try:
        importlib.import_module(module)
    except ImportError:
        return


def _prepare() -> None:
    """What every program finds, made once: each page that its process changes costs a copy."""
    channel, nothing = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # a program's stdin can seek, which Python asks once
    _standard_streams()
    os.dup2(channel, 0)
    os.close(channel)
    os.close(nothing)
    recursion.deepen()
    sys.set_int_max_str_digits(0)
    sys.argv = [FILE]
    vars(builtins).update(exit=sys.exit, quit=sys.exit)  # as `site` does, which this interpreter does not import
    gc.freeze()


def _standard_streams() -> None:
    utf8: dict[str, Any] = {"encoding": "utf-8", "closefd": False}
    sys.stdin = sys.__stdin__ = os.fdopen(0, errors="surrogateescape", **utf8)  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", errors="surrogateescape", **utf8)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", 1, errors="backslashreplace", **utf8)  # type: ignore[misc]


def _divert_prints() -> int:
    """Redirects stdout to stderr. Returns a descriptor of the original stdout."""
    results = os.dup(1)
    os.dup2(2, 1)
    return results


def _module(name: str) -> dict[str, Any]:
    module = sys.modules[name] = ModuleType(name)
    module.__dict__.update(__file__=FILE, __builtins__=builtins)
    return module.__dict__


def _find(module: dict[str, Any], entry: str) -> Any:
    """A function, or a method of a new object of its class. LeetCode's class `Solution` need not be named."""
    owner, _, name = entry.rpartition(".")
    if not owner and (name not in module or hasattr(module.get("Solution"), name)):
        owner = "Solution"
    return getattr(module[owner](), name) if owner else module[name]


def _annotations(function: Any, count: int) -> list[object]:
    """The annotations of the first `count` parameters; None for one without an annotation. Decorators are looked
    through: the function below them has the parameters."""
    notes: dict[str, object] = getattr(function, "__annotations__", {})
    first = isinstance(function, MethodType)
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code = getattr(function, "__code__", None)
    names = code.co_varnames[first : code.co_argcount][:count] if code else ()
    return [notes.get(name) for name in names] + [None] * (count - len(names))


def _of_the_program(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without the leading frames that belong to this module."""
    while trace and trace.tb_frame.f_code.co_filename not in (FILE, TEST_FILE):
        trace = trace.tb_next
    return trace


def _exit_code_of(work: Callable[[], None]) -> int:
    try:
        work()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    return 0


def _flush() -> None:
    """Writes what is left in the standard output, and in what the program has put in its place, unless it is closed."""
    for stream in (sys.stdout, sys.__stdout__):
        if stream is not None and not getattr(stream, "closed", False):
            stream.flush()
