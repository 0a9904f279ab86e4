"""Assertions in a process of their own, whose calls go to the process of the program under test.

Only text comes back, of which values of Python's own types are made here. So a result has no `__eq__` of its own, and
what the program does to its interpreter does not reach its judge. This module runs in the box.
"""

from __future__ import annotations

import builtins
import json
from collections.abc import Callable, Iterable
from typing import IO, Any, NoReturn

from cascade_rl.rl_stages.sandbox.inside import values

_SEQUENCES: dict[str, Callable[[Iterable[Any]], Any]] = {kind.__name__: kind for kind in (list, tuple, set, frozenset)}
_MUTABLE = (list, dict, set)


class Unknown:
    """A result that is not made of Python's own types. It is equal to nothing else."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __repr__(self) -> str:
        return f"<a result of type {self._kind}>"


class ProgramEnded(Exception):
    """The program's process ended, or wrote something else, instead of its result."""


def answer(found: Callable[[], Callable[..., Any]], questions: IO[bytes], answers: IO[bytes]) -> None:
    """The program's side: calls its function until the judge is gone. `found` loads it at the first call."""
    function: Callable[..., Any] | None = None
    for question in questions:
        function = function or found()
        arguments, named = unpacked(json.loads(question))
        outcome = _outcome(function, arguments, named)
        answers.write(json.dumps([outcome, packed([arguments, named])]).encode() + b"\n")


def stand_in(name: str, questions: IO[bytes], answers: IO[bytes]) -> Callable[..., Any]:
    """The judge's side: a function that asks the program. Like the program's it may raise Python's own exceptions.

    Where it returns None, the lists, dicts and sets among its arguments become what the program made of them.
    """

    def function(*arguments: Any, **named: Any) -> Any:
        questions.write(json.dumps(packed([list(arguments), named])).encode() + b"\n")
        reply = answers.readline()
        if not reply.endswith(b"\n"):
            raise ProgramEnded("expected a result; the program ended")
        (kind, content), after = json.loads(reply)
        if kind == "raised":
            _raise(*content)
        result = unpacked(content)
        if result is None:
            _update([*arguments, *named.values()], unpacked(after))
        return result

    function.__name__ = function.__qualname__ = name
    return function


def packed(value: Any) -> Any:
    """`value` as JSON that names its types."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, dict):
        return {"dict": [[packed(key), packed(item)] for key, item in value.items()]}
    for name, kind in _SEQUENCES.items():
        if isinstance(value, kind):  # type: ignore[arg-type]
            return {name: [packed(item) for item in value]}
    if isinstance(value, bytes | bytearray):
        return {"bytes": value.hex()}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if hasattr(value, "tolist"):
        return packed(value.tolist())
    if hasattr(value, "as_integer_ratio"):
        return values.rational(value)
    return {"iterator": packed(list(value))} if hasattr(value, "__next__") else {"unknown": type(value).__name__}


def unpacked(content: Any) -> Any:
    if not isinstance(content, dict):
        return content
    ((kind, parts),) = content.items()
    if kind == "dict":
        return {unpacked(key): unpacked(item) for key, item in parts}
    if kind in _SEQUENCES:
        return _SEQUENCES[kind](map(unpacked, parts))
    simple = {"bytes": bytes.fromhex, "complex": lambda both: complex(*both), "unknown": Unknown}
    return iter(unpacked(parts)) if kind == "iterator" else simple[kind](parts)


def _outcome(function: Callable[..., Any], arguments: list[Any], named: dict[str, Any]) -> tuple[str, Any]:
    try:
        return "returned", packed(function(*arguments, **named))
    except Exception as error:
        return "raised", [type(error).__name__, str(error)]


def _raise(name: str, message: str) -> NoReturn:
    """StopIteration would end a loop of the assertions early."""
    kind = getattr(builtins, name, None)
    ordinary = isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, StopIteration)
    raise kind(message) if kind and ordinary else RuntimeError(f"{name}: {message}")


def _update(given: list[Any], after: Any) -> None:
    arguments, named = after
    for before, now in zip(given, [*arguments, *named.values()], strict=True):
        if isinstance(before, _MUTABLE) and type(now) is type(before):
            before.clear()
            before.extend(now) if isinstance(before, list) else before.update(now)
