"""Look-alikes of a test: the same function with another expected value, so that it fails where the test passes.

Code under test shares a process with the tests and can report any outcome. It cannot know which of a test and its
look-alikes is the test, because they differ in a value that only a repair tells apart.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

Function = ast.FunctionDef | ast.AsyncFunctionDef
Place = tuple[int, int]
"""The lines [first, last) of a module."""
Span = tuple[int, int]
Change = Mapping[Span, tuple[bytes, bytes]]
"""Spans of a text, each with what stands there, and what does in a look-alike."""


@dataclass(frozen=True)
class Variant:
    """A test function's text around its name."""

    before: str
    after: str

    def named(self, name: str) -> str:
        return f"{self.before}{name}{self.after}"


def variants(
    source: str, scope: Sequence[str], name: str, count: int, rng: random.Random
) -> tuple[Place, Variant, Sequence[Variant]] | None:
    """The place of the function `name` in the classes `scope`, the function, and at most `count` look-alikes.

    None if there is no such function, or nothing in it that can be changed. Raises SyntaxError.
    """
    function = _find(ast.parse(source), scope, name)
    if function is None:
        return None
    text = _Text(source, function)
    changes = list(_changes(function, text, count, rng))
    # What differs somewhere is rewritten everywhere, so that no quotation mark tells the test from the others.
    same = {span: unchanged for change in changes for span, (unchanged, _) in change.items()}
    found = [text.variant(same | {span: new for span, (_, new) in change.items()}) for change in changes]
    return (text.place, text.variant(same), found) if found else None


def replaced(source: str, texts: Mapping[Place, Iterable[str]]) -> str:
    """The module with these texts in each place."""
    lines = _lines(source)
    for first, last in sorted(texts, reverse=True):
        lines[first:last] = ["\n".join(texts[first, last]).encode()]
    return b"".join(lines).decode()


def _lines(source: str) -> list[bytes]:
    """Unlike str.splitlines this splits only where a line of Python ends."""
    return source.encode().splitlines(keepends=True)


def _find(module: ast.Module, scope: Sequence[str], name: str) -> Function | None:
    """The last definition, as in Python."""
    body = module.body
    for outer in scope:
        classes = [node for node in body if isinstance(node, ast.ClassDef) and node.name == outer]
        body = classes[-1].body if classes else []
    found = [node for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name]
    return found[-1] if found else None


class _Text:
    """The bytes of a function, whose spans count from the start of its first line."""

    def __init__(self, source: str, function: Function) -> None:
        start = min(node.lineno for node in (function, *function.decorator_list))
        assert function.end_lineno
        self.place = start - 1, function.end_lineno
        lines = _lines(source)[slice(*self.place)]
        self._data = b"".join(lines)
        self._start = start
        self._offsets = [sum(map(len, lines[:index])) for index in range(len(lines))]
        after_def = self._data.index(b"def ", self._offset(function.lineno, function.col_offset))
        self._name = self._data.index(function.name.encode(), after_def + 4)
        self._length = len(function.name.encode())

    def span(self, node: ast.expr) -> Span:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._offset(node.lineno, node.col_offset), self._offset(node.end_lineno, node.end_col_offset)

    def of(self, node: ast.expr) -> bytes:
        start, end = self.span(node)
        return self._data[start:end]

    def variant(self, edits: Mapping[Span, bytes]) -> Variant:
        data = self._edited(edits, 0, self._name), self._edited(edits, self._name + self._length, len(self._data))
        return Variant(*(part.decode() for part in data))

    def _edited(self, edits: Mapping[Span, bytes], start: int, end: int) -> bytes:
        parts, position = [], start
        for (first, last), new in sorted(edits.items()):
            if start <= first and last <= end:
                parts += [self._data[position:first], new]
                position = last
        return b"".join((*parts, self._data[position:end]))

    def _offset(self, line: int, column: int) -> int:
        return self._offsets[line - self._start] + column


def _changes(function: Function, text: _Text, count: int, rng: random.Random) -> Iterator[Change]:
    """Changes, each of one expected value; of one in each row of a parametrised test.

    The last assertion that has a value is changed: a wrong repair then fails in the test and in its look-alikes alike.
    """
    conditions = sorted((node.test for node in ast.walk(function) if isinstance(node, ast.Assert)), key=_place)
    asserted = sorted([*conditions, *_assertion_calls(function)], key=_place)
    literals = next(filter(None, map(_literals, reversed(asserted))), [])
    rows = [found[-1:] for row in _rows(function) if (found := _literals(row))]
    if literals:
        yield from _round_robin([list(_alternatives([node], text, count, rng)) for node in reversed(literals)], count)
    elif rows:
        yield from _alternatives([node for (node,) in rows], text, count, rng)
    elif conditions:
        condition = text.of(conditions[-1])
        yield {text.span(conditions[-1]): (condition, b"not (" + condition + b")")}


def _round_robin(lists: list[list[Change]], count: int) -> list[Change]:
    longest = max(map(len, lists))
    return [changes[index] for index in range(longest) for changes in lists if index < len(changes)][:count]


def _alternatives(nodes: list[ast.Constant], text: _Text, count: int, rng: random.Random) -> Iterator[Change]:
    """Changes that give each of the nodes another value."""
    values = [_other_values(node.value, count, rng) for node in nodes]
    for chosen in zip(*values, strict=False):
        yield {
            text.span(node): (repr(node.value).encode(), repr(value).encode())
            for node, value in zip(nodes, chosen, strict=True)
        }


def _assertion_calls(function: Function) -> list[ast.Call]:
    """Calls such as `assertEqual` and `raises`."""
    return [node for node in ast.walk(function) if isinstance(node, ast.Call) and _asserts(node.func)]


def _asserts(called: ast.expr) -> bool:
    return isinstance(called, ast.Attribute) and (called.attr.startswith("assert") or called.attr == "raises")


def _rows(function: Function) -> list[ast.expr]:
    """The rows of all `parametrize` of a function."""
    calls = [node for node in function.decorator_list if isinstance(node, ast.Call)]
    tables = [
        call.args[1]
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == "parametrize" and len(call.args) > 1
    ]
    rows = [row for table in tables if isinstance(table, ast.List | ast.Tuple) for row in table.elts]
    return [row.args[-1] if isinstance(row, ast.Call) and row.args else row for row in rows]  # of pytest.param


def _literals(node: ast.expr) -> list[ast.Constant]:
    """The constants of an expression that can be changed, in source order; none inside an f-string."""
    inside = {id(part) for outer in ast.walk(node) if isinstance(outer, ast.JoinedStr) for part in ast.walk(outer)}
    found = [part for part in ast.walk(node) if isinstance(part, ast.Constant) and id(part) not in inside]
    return sorted((part for part in found if not isinstance(part.value, complex | type(...))), key=_place)


def _place(node: ast.expr) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _other_values(value: object, count: int, rng: random.Random) -> list[object]:
    """At most `count` values of the same type that look alike."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        first = value - min(rng.randrange(count + 1), int(value) if value < count else count)
        return [number for number in (first + step for step in range(count + 1)) if number != value]
    if isinstance(value, bytes):
        return [str(other).encode("latin-1") for other in _other_texts(value.decode("latin-1"), count, rng)]
    return list(_other_texts(value, count, rng)) if isinstance(value, str) else [True, False]


def _other_texts(text: str, count: int, rng: random.Random) -> list[str]:
    """Texts with one letter or digit changed, or with a letter added."""
    places = [index for index, letter in enumerate(text) if letter.isascii() and letter.isalnum()] or [len(text)]
    found: dict[str, None] = {}
    for letter in rng.sample("abcdefghijklmnopqrstuvwxyz", 26):
        index = rng.choice(places)
        if text[index : index + 1] != letter:
            found[f"{text[:index]}{letter}{text[index + 1 :]}"] = None
    return list(found)[:count]
