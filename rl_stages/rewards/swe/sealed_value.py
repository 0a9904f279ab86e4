"""What stands in a test for what it expects. It runs in the box too, where no test shows that.

A value equals everything, and notes the form of what it was compared with. A type of exception catches all, and notes
which of Python's own it caught. The grader outside compares what was noted.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable
from typing import Any

NAME = "sealed_value"  # in a test, as in `assert f(3) == sealed_value(7)`
ERROR_NAME = "sealed_error"  # as in `with pytest.raises(sealed_error(7)):`
_SCALARS = (bool, int, float, complex)


class Sealed:
    """`__name__` becomes the id of a test's parameter in pytest, which may not tell its value either."""

    __array_ufunc__ = None  # so that numpy compares a whole array with it, not each element

    def __init__(self, number: int, seen: set[str]) -> None:
        self.__name__ = shown(number)
        self._seen = seen

    def __eq__(self, other: object) -> bool:
        try:
            self._seen.add(form(other))
        except (TypeError, ValueError, OverflowError, RecursionError):
            self._seen.add(f"a {type(other).__name__}")
        return True


class _Catching(type):
    _seen: set[str]

    def __subclasscheck__(cls, kind: type) -> bool:
        cls._seen.add(own_kind(kind))
        return True

    def __instancecheck__(cls, error: object) -> bool:
        return cls.__subclasscheck__(type(error))


def sealed_error(seen: set[str]) -> type:
    """A type of exception for `raises` of pytest and `assertRaises` of unittest."""
    return _Catching("Sealed", (Exception,), {"_seen": seen})


def own_kind(error: type) -> str:
    """The name of the nearest type of Python's own from which a type of exception derives."""
    return next(kind.__name__ for kind in error.__mro__ if vars(builtins).get(kind.__name__) is kind)


def shown(number: int) -> str:
    return f"sealed-{number}."


def form(value: Any) -> str:
    """The same text for equal values of Python's own types, of types derived from them, and of numbers.

    Raises TypeError for a value of another type, and ValueError for an integer of more than 4,300 digits.
    """
    if value is None or isinstance(value, _SCALARS):
        return repr(_simplest(value))
    if isinstance(value, str):
        return repr("".join(value))
    if isinstance(value, bytes | bytearray):
        return repr(bytes(value))
    if isinstance(value, dict):
        return f"{{{_joined(sorted(f'{form(key)}: {form(item)}' for key, item in value.items()))}}}"
    if isinstance(value, set | frozenset):
        return f"set({_joined(sorted(map(form, value)))})"
    if isinstance(value, list):
        return f"[{_joined(map(form, value))}]"
    if isinstance(value, tuple):
        return f"({_joined(map(form, value))})"
    if hasattr(value, "tolist"):
        return form(value.tolist())
    if hasattr(value, "as_integer_ratio"):
        above, below = value.as_integer_ratio()
        return form(above if below == 1 else above / below)
    raise TypeError(f"a {type(value).__name__} has no form")


def _simplest(number: Any) -> Any:
    """True, 1, 1.0 and 1+0j are equal."""
    if isinstance(number, complex):
        return _simplest(number.real) if number.imag == 0 else complex(number)
    if isinstance(number, float):
        return int(number) if number.is_integer() else float(number)
    return number if number is None else int(number)


def _joined(parts: Iterable[str]) -> str:
    return ", ".join(parts)
