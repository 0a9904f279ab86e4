"""Finds what a test expects, and hides it (sealed_value.py).

What a test compares with a literal is a value, also where the literal comes from a row of `parametrize`, and where it
is given to a helper of the same module which compares it. What it asserts without such a value is a truth: the box sees
it, or its opposite, by a coin that is thrown for each paper. What it expects to be raised is an error, if it is one of
Python's own.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import takewhile
from secrets import randbits
from typing import Any

from cascade_rl.rl_stages.rewards.swe.sealed_value import ERROR_NAME, NAME, form, shown

Function = ast.FunctionDef | ast.AsyncFunctionDef
Helpers = Mapping[str, Function]
Span = tuple[int, int]
"""Bytes [first, last) of a module."""

_SHOWN = re.compile(re.escape(shown(0)).replace("0", r"(\d{1,9})"))
_WITH_ID = (int, float, complex, str, type(None))
_OPPOSITES: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.In: ast.NotIn, ast.Is: ast.IsNot}
_OPPOSITES |= {other: one for one, other in _OPPOSITES.items()}
_TRUTHS = {
    "assertTrue": "{}",
    "assertFalse": "not {}",
    "assertEqual": "{} == {}",
    "assertNotEqual": "{} != {}",
    "assertIs": "{} is {}",
    "assertIsNot": "{} is not {}",
    "assertIsNone": "{} is None",
    "assertIsNotNone": "{} is not None",
    "assertIn": "{} in {}",
    "assertNotIn": "{} not in {}",
    "assertIsInstance": "isinstance({}, {})",
    "assertNotIsInstance": "not isinstance({}, {})",
    "assertGreater": "{} > {}",
    "assertGreaterEqual": "{} >= {}",
    "assertLess": "{} < {}",
    "assertLessEqual": "{} <= {}",
}
"""What each method of unittest asserts of its first arguments."""
_RAISES = ("raises", "assertRaises", "assertRaisesRegex")


@dataclass(frozen=True)
class Expected:
    """What a module's tests expect, in `form`; of an error its name. `text` is its place in the box's text, with {} for
    the seal.

    parameter   its part of a test's id in pytest, where it is a parameter
    opposite    of a truth: the text that expects the other truth value
    is_error    whether it is a type of exception
    """

    function: str
    span: Span
    form: str
    text: str = "{}"
    parameter: str = ""
    opposite: str = ""
    is_error: bool = False

    @property
    def is_value(self) -> bool:
        """Whether it is neither a truth nor an error, which have few alternatives."""
        return not self.opposite and not self.is_error

    def drawn(self) -> Expected:
        """This, or by chance its opposite if it is a truth."""
        return replace(self, text=self.opposite, form=form(False)) if self.opposite and randbits(1) else self

    def is_right(self, seen: Set[str]) -> bool:
        """Whether what was noted is what is expected."""
        if self.is_error:
            return bool(seen) and all(_is_kind_of(name, self.form) for name in seen)
        return seen == {self.form}

    def seal(self, number: int) -> str:
        return self.text.format(f"{ERROR_NAME if self.is_error else NAME}({number})")


def expected(source: str, functions: Iterable[str]) -> list[Expected]:
    """What the functions, as `name` or `Class::name`, expect. Raises SyntaxError, ValueError, RecursionError."""
    module, text = ast.parse(source), _Text(source)
    helpers = _helpers(module)
    return [
        each for name in sorted(functions) if (node := _find(module, name)) for each in _of(name, node, helpers, text)
    ]


def sealed(source: str, seals: Mapping[int, Expected]) -> str:
    """The module with the number of each in place of its value."""
    data = source.encode()
    for number, seal in sorted(seals.items(), key=lambda each: each[1].span, reverse=True):
        first, last = seal.span
        data = data[:first] + seal.seal(number).encode() + data[last:]
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


def _find(module: ast.Module, name: str) -> Function | None:
    """The last definition, as in Python."""
    *scope, last = name.split("::")
    body = module.body
    for outer in scope:
        classes = [node for node in body if isinstance(node, ast.ClassDef) and node.name == outer]
        body = classes[-1].body if classes else []
    found = [node for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == last]
    return found[-1] if found else None


def _of(name: str, function: Function, helpers: Helpers, text: _Text) -> Iterator[Expected]:
    """Those of one function."""
    named = _parameters(function) | _assigned(function)
    given = list(_given(function, helpers))
    compared = {each.id for each in given if isinstance(each, ast.Name) and each.id in named}
    yield from (_literal(name, each, text) for each in given if _is_literal(each))
    for claim in _claims(function):
        sides = [both for part in ast.walk(claim) if (both := _sides(part))]
        literals = [side for both in sides for side in _one_literal(both)]
        names = {each for both in sides if not _one_literal(both) for each in _one_name(both, named)}
        compared |= names
        yield from (_literal(name, side, text) for side in literals)
        if not literals and not names:
            yield from _truth(name, claim, text)
    for each in sorted(compared):
        yield from (_literal(name, value, text) for value in named[each])
    yield from _errors(name, function, text)


def _helpers(module: ast.Module) -> Helpers:
    """The functions and methods of a module, by name, whose name is theirs alone."""
    found = [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    count = Counter(node.name for node in found)
    return {node.name: node for node in found if count[node.name] == 1}


def _given(function: Function, helpers: Helpers) -> Iterator[ast.expr]:
    """What a function's calls of helpers give to parameters that these compare with something."""
    for call in ast.walk(function):
        if isinstance(call, ast.Call) and (helper := helpers.get(_called(call))):
            compared = _compared(helper)
            yield from (value for name, value in _bound(call, helper) if name in compared)


def _bound(call: ast.Call, helper: Function) -> Iterator[tuple[str | None, ast.expr]]:
    names = [each.arg for each in (*helper.args.posonlyargs, *helper.args.args)]
    of_method = names[:1] == ["self"]
    plain = takewhile(lambda each: not isinstance(each, ast.Starred), call.args)
    yield from zip(names[of_method:], plain, strict=False)
    yield from ((each.arg, each.value) for each in call.keywords)


def _compared(function: Function) -> set[str]:
    """Names that are a side of a comparison in what a function asserts."""
    sides = (side for claim in _claims(function) for part in ast.walk(claim) for side in _sides(part))
    return {side.id for side in sides if isinstance(side, ast.Name)}


def _claims(function: Function) -> Iterator[ast.expr]:
    """What must be true: what an assertion or a method of unittest asserts, where it has several parts each of them."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            yield from _parts(node.test)
        if isinstance(node, ast.Expr) and _called(node.value) in _TRUTHS:
            yield node.value


def _parts(test: ast.expr) -> Iterator[ast.expr]:
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        for part in test.values:
            yield from _parts(part)
    else:
        yield test


def _called(node: ast.AST) -> str:
    function = node.func if isinstance(node, ast.Call) else None
    return getattr(function, "attr", getattr(function, "id", ""))


def _one_name(sides: Sequence[ast.expr], known: Mapping[str, object]) -> list[str]:
    names = [side.id for side in sides if isinstance(side, ast.Name) and side.id in known]
    return names if len(names) == 1 else []


def _truth(function: str, claim: ast.expr, text: _Text) -> Iterator[Expected]:
    """Both forms are written anew, so that no brackets tell which of them is the test's own."""
    if (truth := _asserted(claim)) is not None:
        asked = (ast.unparse(each).replace("{", "{{").replace("}", "}}") for each in (truth, _opposite(truth)))
        plain, opposite = (f"{{}} == bool({each})" for each in asked)
        yield Expected(function, text.span(claim), form(True), plain, opposite=opposite)


def _asserted(claim: ast.expr) -> ast.expr | None:
    """A claim without the method of unittest that makes it; None if that has unusual arguments."""
    if not isinstance(claim, ast.Call) or _called(claim) not in _TRUTHS:
        return claim
    pattern = _TRUTHS[_called(claim)]
    given = claim.args[: pattern.count("{}")]
    if len(given) < pattern.count("{}") or any(isinstance(each, ast.Starred) for each in given):
        return None
    return ast.parse(pattern.format(*(f"({ast.unparse(each)})" for each in given)), mode="eval").body


def _opposite(truth: ast.expr) -> ast.expr:
    if isinstance(truth, ast.UnaryOp) and isinstance(truth.op, ast.Not):
        return truth.operand
    if isinstance(truth, ast.Compare) and len(truth.ops) == 1 and (other := _OPPOSITES.get(type(truth.ops[0]))):
        return ast.Compare(truth.left, [other()], truth.comparators)
    return ast.UnaryOp(ast.Not(), truth)


def _errors(function: str, node: Function, text: _Text) -> Iterator[Expected]:
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and _called(call) in _RAISES and call.args and isinstance(call.args[0], ast.Name):
            name = call.args[0].id
            if _is_kind_of(name, "Exception") and name != "Exception":
                yield Expected(function, text.span(call.args[0]), name, is_error=True)


def _is_kind_of(name: str, other: str) -> bool:
    """Whether both are exceptions of Python's own, and the first is the second or derived from it."""
    kinds = vars(builtins).get(name), vars(builtins)[other]
    return isinstance(kinds[0], type) and issubclass(kinds[0], kinds[1])


def _literal(function: str, node: ast.expr, text: _Text) -> Expected:
    return Expected(function, text.span(node), form(ast.literal_eval(node)), parameter=_id(node))


def _sides(node: ast.AST) -> list[ast.expr]:
    """Both sides of `==`, or of what `assertEqual` compares."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq):
        return [node.left, *node.comparators]
    return node.args[:2] if isinstance(node, ast.Call) and _called(node) == "assertEqual" else []


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
