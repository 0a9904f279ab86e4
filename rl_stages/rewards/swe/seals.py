"""Finds the values that a test expects, and hides them.

What a test compares with a literal is sealed (sealed_value.py), also where the literal comes from a row of
`parametrize`. An assertion without such a value is sealed as a whole: its truth value is one.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cascade_rl.rl_stages.rewards.swe.sealed_value import NAME, form, shown

Function = ast.FunctionDef | ast.AsyncFunctionDef
Span = tuple[int, int]
"""Bytes [first, last) of a module."""

_SHOWN = re.compile(re.escape(shown(0)).replace("0", r"(\d{1,9})"))
_WITH_ID = (int, float, complex, str, type(None))


@dataclass(frozen=True)
class Expected:
    """A value that a module's tests expect, in `form`. `text` is its place in the box's text, with {} for its number.

    parameter   its part of a test's id in pytest, where it is a parameter
    is_truth    whether it is the truth value of an assertion, which can be guessed
    """

    function: str
    span: Span
    form: str
    text: str
    parameter: str = ""
    is_truth: bool = False


def expected(source: str, functions: Iterable[str]) -> list[Expected]:
    """What the functions, as `name` or `Class::name`, expect. Raises SyntaxError, ValueError, RecursionError."""
    module, text = ast.parse(source), _Text(source)
    return [each for name in sorted(functions) if (node := _find(module, name)) for each in _of(name, node, text)]


def sealed(source: str, seals: Mapping[int, Expected]) -> str:
    """The module with the number of each in place of its value."""
    data = source.encode()
    for number, seal in sorted(seals.items(), key=lambda each: each[1].span, reverse=True):
        first, last = seal.span
        data = data[:first] + seal.text.format(f"{NAME}({number})").encode() + data[last:]
    return data.decode()


def own_name(test: str, parameters: Mapping[int, str]) -> str:
    """A test's id as it is without seals. `parameters`: by number."""
    return _SHOWN.sub(lambda found: parameters.get(int(found[1]), found[0]), test)


class _Text:
    def __init__(self, source: str) -> None:
        self._data = source.encode()
        self._starts = [0]
        for line in self._data.splitlines(keepends=True):  # unlike that of str, only where a line of Python ends
            self._starts.append(self._starts[-1] + len(line))

    def span(self, node: ast.expr) -> Span:
        assert node.end_lineno is not None and node.end_col_offset is not None
        first = self._starts[node.lineno - 1] + node.col_offset
        return first, self._starts[node.end_lineno - 1] + node.end_col_offset

    def of(self, node: ast.expr) -> str:
        first, last = self.span(node)
        return self._data[first:last].decode()


def _find(module: ast.Module, name: str) -> Function | None:
    """The last definition, as in Python."""
    *scope, last = name.split("::")
    body = module.body
    for outer in scope:
        classes = [node for node in body if isinstance(node, ast.ClassDef) and node.name == outer]
        body = classes[-1].body if classes else []
    found = [node for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == last]
    return found[-1] if found else None


def _of(name: str, function: Function, text: _Text) -> Iterator[Expected]:
    """Those of one function."""
    named = _parameters(function) | _assigned(function)
    compared: set[str] = set()
    for node in ast.walk(function):
        sides = _compared(node)
        literals = [side for both in sides for side in _one_literal(both)]
        names = {each for both in sides if not _one_literal(both) for each in _one_name(both, named)}
        compared |= names
        yield from (_literal(name, side, text) for side in literals)
        if isinstance(node, ast.Assert) and not literals and not names:
            yield _truth(name, node.test, text)
    for each in sorted(compared):
        yield from (_literal(name, value, text) for value in named[each])


def _compared(node: ast.AST) -> list[list[ast.expr]]:
    """Both sides of each comparison that an assertion makes."""
    if isinstance(node, ast.Assert):
        return [both for part in ast.walk(node.test) if (both := _sides(part))]
    if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("assertEqual", "assertEquals"):
        return [node.args[:2]]
    return []


def _one_name(sides: Sequence[ast.expr], known: Mapping[str, object]) -> list[str]:
    names = [side.id for side in sides if isinstance(side, ast.Name) and side.id in known]
    return names if len(names) == 1 else []


def _truth(function: str, condition: ast.expr, text: _Text) -> Expected:
    escaped = text.of(condition).replace("{", "{{").replace("}", "}}")
    return Expected(function, text.span(condition), form(True), f"{{}} == bool(({escaped}))", is_truth=True)


def _literal(function: str, node: ast.expr, text: _Text) -> Expected:
    return Expected(function, text.span(node), form(ast.literal_eval(node)), "{}", _id(node))


def _sides(node: ast.AST) -> list[ast.expr]:
    """Both sides of `==`."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq):
        return [node.left, *node.comparators]
    return []


def _one_literal(sides: Sequence[ast.expr]) -> list[ast.expr]:
    literals = [side for side in sides if _is_literal(side)]
    return literals if len(literals) == 1 else []


def _is_literal(node: ast.expr) -> bool:
    try:
        form(ast.literal_eval(node))
    except (ValueError, TypeError, SyntaxError, RecursionError):
        return False
    return True


def _parameters(function: Function) -> dict[str, list[ast.expr]]:
    """The literals of each parameter in the rows of all `parametrize` of a function."""
    found: dict[str, list[ast.expr]] = {}
    for call in function.decorator_list:
        if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "parametrize" and len(call.args) > 1:
            names, table = _names(call.args[0]), call.args[1]
            rows = [_row(row, len(names)) for row in getattr(table, "elts", ())]
            found |= {name: [row[at] for row in rows if _is_scalar(row[at : at + 1])] for at, name in enumerate(names)}
    return found


def _assigned(function: Function) -> dict[str, list[ast.expr]]:
    """The literals of variables that have no other value, as in `expected = 3`."""
    found: dict[str, list[ast.expr]] = {}
    stored: Counter[str] = Counter()
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            stored[node.id] += 1
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and _is_literal(node.value):
            found.setdefault(node.targets[0].id, []).append(node.value)
    return {name: values for name, values in found.items() if len(values) == stored[name]}


def _names(node: ast.expr) -> list[str]:
    try:
        names: Any = ast.literal_eval(node)
    except ValueError:
        return []
    return [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)


def _row(node: ast.expr, columns: int) -> list[ast.expr]:
    if isinstance(node, ast.Call):  # pytest.param
        return node.args
    return node.elts if columns > 1 and isinstance(node, ast.Tuple | ast.List) else [node]


def _is_scalar(nodes: Sequence[ast.expr]) -> bool:
    """Whether it is a literal with an id of its own in pytest."""
    return any(_is_literal(node) and isinstance(ast.literal_eval(node), _WITH_ID) for node in nodes)


def _id(node: ast.expr) -> str:
    value = ast.literal_eval(node)
    return value.encode("unicode_escape").decode("ascii") if isinstance(value, str) else str(value)
