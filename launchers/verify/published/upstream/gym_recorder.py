"""A plug-in of pytest that lets NeMo-Gym's own tests run without NeMo-Gym, and writes down what they expect.

Gym's modules, and others of its requirements, are stand-ins. A stand-in server answers nothing: the reward that it
returns takes note of what it is compared with. What is noted goes to the file that the
environment variable NOTES names, a line {"id", "row", "output", "reward"} each.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import os
import sys
from contextlib import redirect_stdout
from importlib.machinery import ModuleSpec
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

NOTES = "CASCADE_GYM_NOTES"
ABSENT = frozenset(["nemo_gym", "resources_servers", "app", "openai", "fastapi", "xmltodict", "lcb_integration", "ray"])
KINDS = {"Message": "message", "Call": "function_call", "Item": "reasoning", "Text": "output_text"}

_test = ""


class _NamedValues(type):
    def __getattr__(cls, name: str) -> Any:
        """A member of what may be an Enum."""
        if name.startswith("_"):
            raise AttributeError(name)
        return name.lower() if name.isupper() else StandIn()

    def model_validate(cls, reply: Any) -> Any:
        """A reply in JSON, which is the request that a server was sent."""
        return StandIn(reward=Reward(plain(reply)))


class StandIn(metaclass=_NamedValues):
    """An instance of a class of Gym: it keeps what it is made of, and has every other attribute too."""

    def __init__(self, *_: Any, **fields: Any) -> None:
        kind = next((kind for end, kind in KINDS.items() if type(self).__name__.endswith(end)), None)
        self.__dict__.update(({"type": kind} if kind else {}) | fields)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn()

    def __call__(self, *_: Any, **__: Any) -> Any:
        return StandIn()

    def model_copy(self, *, update: dict[str, Any] | None = None, deep: bool = False) -> Any:
        return type(self)(**self.__dict__ | (update or {}))

    def model_dump(self, **_: Any) -> dict[str, Any]:
        return {name: plain(value) for name, value in self.__dict__.items()}

    def post(self, *, json: Any, **_: Any) -> Any:
        """Of an HTTP client: the reply is the request."""
        return StandIn(json=lambda: json)

    async def verify(self, *request: Any) -> Any:
        """Of a server, which is asked with its request or with the HTTP request before it."""
        chosen = {name: value for name, value in plain(self.config).items() if name == "grading_mode" and value}
        return StandIn(reward=Reward(plain(request[-1]) | chosen))

    async def _verify_answer_with_library_async(self, expected: str, text: str) -> Any:
        """Of the server for mathematics, whose reward this is where no judge is asked."""
        return Reward(
            {"expected_answer": expected, "response": {"output": [{"type": "message", "content": [{"text": text}]}]}}
        )

    def __await__(self) -> Any:
        return asyncio.sleep(0, StandIn()).__await__()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        """There is nothing to close."""


class Reward:
    """Takes note of the number that it is compared with, and is equal to it."""

    def __init__(self, request: dict[str, Any]) -> None:
        self._request = request

    def __eq__(self, other: object) -> bool:
        first = other[0] if isinstance(other, tuple) else other
        number = getattr(first, "expected", first)  # the former of pytest.approx
        if isinstance(number, int | float):
            _note(dict(self._request), float(number))
        return True

    __hash__ = None  # type: ignore[assignment]


def plain(value: Any) -> Any:
    """A value of JSON, with the fields of stand-ins as objects."""
    if isinstance(value, StandIn):
        return value.model_dump()
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def _note(row: dict[str, Any], reward: float) -> None:
    output = row.pop("response", {}).get("output", [])
    line = {"id": _test, "row": row, "output": output, "reward": reward}
    with Path(os.environ[NOTES]).open("a") as file:
        file.write(json.dumps(line, default=str) + "\n")


class _Module(ModuleType):
    __path__: list[str] = []  # noqa: RUF012 - a package's

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (StandIn,), {})
        setattr(self, name, made)
        return made


class _Finder:
    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name.partition(".")[0] in ABSENT else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing in it."""


class _Asserts(ast.NodeTransformer):
    """Replaces each assertion by a look at what it asserts, so that none ends a test."""

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        look = ast.parse("try:\n    pass\nexcept Exception:\n    pass").body[0]
        assert isinstance(look, ast.Try)
        look.body = [ast.Expr(node.test)]
        return ast.copy_location(look, node)


def without_asserts(source: str) -> str:
    return ast.unparse(ast.fix_missing_locations(_Asserts().visit(ast.parse(source))))


def pytest_configure() -> None:
    sys.meta_path.insert(0, _Finder())


def pytest_pyfunc_call(pyfuncitem: Any) -> bool:
    """Runs a test, also an asynchronous one. Some close their standard output."""
    global _test
    _test = pyfuncitem.name
    names = pyfuncitem._fixtureinfo.argnames
    with redirect_stdout(StringIO()):
        running = pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})
        if inspect.iscoroutine(running):
            asyncio.run(running)
    return True
