"""Small bugs, one at a time: a range of the source is replaced, and every other character stays.

`ast.unparse` of a function would drop its comments and so reveal where the bug is.
"""

from __future__ import annotations

import ast
import io
import tokenize
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

COMPARISONS = {
    **{"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="},
    **{"in": "not in", "not in": "in", "is": "is not", "is not": "is"},
}
ARITHMETIC = {"+": "-", "-": "+", "*": "+", "//": "*", "/": "*", "%": "//"}
BOOLEAN = {"and": "or", "or": "and"}
LARGEST_CONSTANT = 10

_SKIPPED = (tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT)


@dataclass(frozen=True)
class Mutation:
    """`replacement` for the bytes [start, end) of a module's UTF-8 source, inside `function`."""

    kind: str
    function: str
    line: int
    start: int
    end: int
    replacement: str

    def apply(self, source: str) -> str:
        data = source.encode()
        return (data[: self.start] + self.replacement.encode() + data[self.end :]).decode()


def mutations(source: str) -> list[Mutation]:
    """Every mutation inside the functions of a module, each once, in source order. Raises SyntaxError."""
    module = _Module(source)
    found = {
        mutation
        for function in ast.walk(ast.parse(source))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for statement in function.body
        for node in _own_nodes(statement)
        for mutation in module.of(node, function.name)
    }
    return sorted(found, key=lambda mutation: (mutation.start, mutation.end, mutation.kind, mutation.replacement))


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """A statement's nodes, without annotations, f-strings, and inner functions, which are visited on their own."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.JoinedStr):
        return
    yield node
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and name != "annotation":
                yield from _own_nodes(child)


class _Module:
    """Source with the byte offsets of its lines and tokens."""

    def __init__(self, source: str) -> None:
        self.data = source.encode()
        lines = source.splitlines(keepends=True) if "\f" not in source else io.StringIO(source).readlines()
        self.offsets = [0]
        for line in lines:
            self.offsets.append(self.offsets[-1] + len(line.encode()))
        self.tokens = [
            (self._token_offset(token.start, token.line), self._token_offset(token.end, token.line), token.string)
            for token in tokenize.generate_tokens(io.StringIO(source).readline)
            if token.type not in _SKIPPED and token.string not in ("(", ")") and "\n" not in token.string
        ]

    def of(self, node: ast.AST, function: str) -> Iterator[Mutation]:
        for kind, (start, end), replacement in self._changes(node):
            yield Mutation(kind, function, getattr(node, "lineno", 0), start, end, replacement)

    def _changes(self, node: ast.AST) -> Iterator[tuple[str, tuple[int, int], str]]:
        match node:
            case ast.Compare(left=left, ops=[_], comparators=[right]):
                yield from self._operator("comparison", left, right, COMPARISONS)
            case ast.BinOp(left=ast.Constant(value=str())):
                pass  # `%` as string formatting
            case ast.BinOp(left=left, right=right):
                yield from self._operator("arithmetic", left, right, ARITHMETIC)
            case ast.BoolOp(values=[left, right]):
                yield from self._operator("boolean", left, right, BOOLEAN)
            case ast.If(test=test):
                yield "negated if", self._range(test), f"not ({self._text(test)})"
            case ast.Constant(value=int() as value) if type(value) is int and 0 <= value <= LARGEST_CONSTANT:
                yield "constant", self._range(node), str(value + 1)
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
                yield "return None", self._range(value), "None"
            case ast.For(body=[*_, before, last]) | ast.While(body=[*_, before, last]):
                yield "dropped statement", (self._range(before)[1], self._range(last)[1]), ""
            case ast.Call(args=[first, second], keywords=[]) if self._between(first, second).strip() == ",":
                swapped = f"{self._text(second)}, {self._text(first)}"
                yield "swapped arguments", (self._range(first)[0], self._range(second)[1]), swapped

    def _operator(
        self, kind: str, left: ast.expr, right: ast.expr, table: dict[str, str]
    ) -> Iterator[tuple[str, tuple[int, int], str]]:
        low, high = self._range(left)[1], self._range(right)[0]
        first, last = (bisect_left(self.tokens, (offset,)) for offset in (low, high))
        between = self.tokens[first:last]
        operator = " ".join(string for _, _, string in between)
        if operator in table:
            yield kind, (between[0][0], between[-1][1]), table[operator]

    def _range(self, node: Any) -> tuple[int, int]:
        start = self.offsets[node.lineno - 1] + node.col_offset
        return start, self.offsets[node.end_lineno - 1] + node.end_col_offset

    def _text(self, node: ast.expr) -> str:
        start, end = self._range(node)
        return self.data[start:end].decode()

    def _between(self, left: ast.expr, right: ast.expr) -> str:
        return self.data[self._range(left)[1] : self._range(right)[0]].decode()

    def _token_offset(self, position: tuple[int, int], line: str) -> int:
        row, column = position
        return self.offsets[min(row, len(self.offsets)) - 1] + len(line[:column].encode())
