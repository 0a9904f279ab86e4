"""A Python program under test: compiled once, run in a new process for each input. This module runs in the box."""

from __future__ import annotations

import atexit
import builtins
import importlib
import json
import os
import secrets
import sys
import threading
import traceback
from types import CodeType, ModuleType, TracebackType
from typing import Any, NoReturn

from cascade_rl.rl_stages.sandbox.inside import values
from cascade_rl.rl_stages.sandbox.walls.confinement import STACK_MIB

FILE, TEST_FILE = "main.py", "test.py"


class PythonProgram:
    """`source` in one of the modes of `Program`. Raises SyntaxError and whatever else `compile` raises."""

    stack_mib = STACK_MIB

    def __init__(self, source: bytes, mode: str, entry: str | None) -> None:
        self._mode, self._entry = mode, entry
        self._code = compile(source, FILE, "exec", dont_inherit=True)
        self._nonce = secrets.token_hex(16).encode()
        for module in ("numpy", "typing"):
            if module.encode() in source or (module, mode) == ("typing", "call"):
                _import_if_there(module)

    def stdin(self, test: bytes) -> bytes:
        return test if self._mode == "stdin" else b""

    def result(self, output: bytes) -> bytes | None:
        """The output of a test with exit code 0; None if its assertions did not run to the end."""
        if self._mode != "assert":
            return output
        return b"" if output == self._nonce else None

    def run(self, test: bytes) -> NoReturn:
        """Runs in the test's process, after its standard streams are set up."""
        os.closerange(3, 256)
        _standard_streams()
        sys.argv = [FILE]
        vars(builtins).update(exit=sys.exit, quit=sys.exit)  # as `site` does, which this interpreter does not import
        code = 0
        try:
            getattr(self, f"_run_{self._mode}")(test)
            threading._shutdown()  # type: ignore[attr-defined]  # joins the threads, as at the end of any program
            atexit._run_exitfuncs()
            sys.stdout.flush()
        except SystemExit as end:
            code = _exit_code(end)
            _flush()
        except BaseException as error:
            traceback.print_exception(error.with_traceback(_of_the_program(error.__traceback__)), limit=-4)
            code = 1
            _flush()
        os._exit(code & 255)

    def _run_stdin(self, _: bytes) -> None:
        _execute(self._code, "__main__")

    def _run_call(self, test: bytes) -> None:
        results = _divert_prints()
        arguments = json.loads(test)
        names = {"ListNode": values.ListNode, "TreeNode": values.TreeNode}
        function = _find(_execute(self._code, "solution", vars(sys.modules["typing"]) | names), str(self._entry))
        result = function(*map(values.argument, arguments, _annotations(function, len(arguments))))
        os.write(results, json.dumps(values.plain(result)).encode())

    def _run_assert(self, test: bytes) -> None:
        results = _divert_prints()
        module = _execute(self._code, "solution")
        exec(compile(test, TEST_FILE, "exec", dont_inherit=True), module)
        os.write(results, self._nonce)


def _import_if_there(module: str) -> None:
    try:
        importlib.import_module(module)
    except ImportError:
        return


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


def _execute(code: CodeType, name: str, names: dict[str, Any] | None = None) -> dict[str, Any]:
    module = ModuleType(name)
    sys.modules[name] = module
    module.__dict__.update({k: v for k, v in (names or {}).items() if not k.startswith("_")})
    module.__dict__.update(__file__=FILE, __builtins__=builtins)
    exec(code, module.__dict__)
    return module.__dict__


def _find(module: dict[str, Any], entry: str) -> Any:
    """A function, or a method of a new object of its class. LeetCode's class `Solution` need not be named."""
    owner, _, name = entry.rpartition(".")
    if not owner and name not in module and "Solution" in module:
        owner = "Solution"
    return getattr(module[owner](), name) if owner else module[name]


def _annotations(function: Any, count: int) -> list[object]:
    """The annotations of the first `count` parameters; None for one without an annotation."""
    notes: dict[str, object] = getattr(function, "__annotations__", {})
    names = function.__code__.co_varnames[hasattr(function, "__self__") :] if notes else ()
    return [notes.get(name) for name in names[:count]] + [None] * (count - len(names[:count]))


def _of_the_program(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without the leading frames that belong to this module."""
    while trace and trace.tb_frame.f_code.co_filename not in (FILE, TEST_FILE):
        trace = trace.tb_next
    return trace


def _exit_code(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1


def _flush() -> None:
    try:
        sys.stdout.flush()
    except (OSError, ValueError):  # the program closed it, or nobody reads it any more
        return
