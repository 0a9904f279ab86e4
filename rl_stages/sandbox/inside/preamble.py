"""The names that a program may use without importing them. This module runs in the box.

LiveCodeBench and NeMo-Gym put `from M import *` for each of MODULES before a program, and then the builtins, so that
`pow` and `open` stay themselves. Here they become builtins, so that a program's line numbers, its
`from __future__` and what it defines stay its own. Loading all takes 20 ms, so that it is done only for a program that
uses a name which it does not define.
"""

from __future__ import annotations

import builtins
import importlib
import symtable
from typing import Any

MODULES = (
    *("string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics"),
    *("itertools", "functools", "operator", "io", "sys", "json", "typing"),
)


def names() -> dict[str, Any]:
    """What the modules export, and the modules. The builtins win, as in the graders."""
    found: dict[str, Any] = {}
    for name in MODULES:
        module = importlib.import_module(name)
        public = getattr(module, "__all__", None) or [word for word in vars(module) if not word.startswith("_")]
        found.update((word, getattr(module, word)) for word in public)
    found.update((name, importlib.import_module(name)) for name in MODULES if name != "typing")
    return {name: value for name, value in found.items() if not hasattr(builtins, name)}


def needed(source: bytes, file: str) -> bool:
    """Whether the source uses a name that it does not define; one of `from M import *` counts as such."""
    top = symtable.symtable(source, file, "exec")  # type: ignore[arg-type]  # bytes, as for `compile`
    used, defined = _globals(top)
    return any(not hasattr(builtins, name) and name[:2] != "__" for name in used - defined)


def _globals(table: symtable.SymbolTable) -> tuple[set[str], set[str]]:
    """The names that this scope and those below it look up in the module or the builtins, and those defined there."""
    found = [symbol for symbol in table.get_symbols() if symbol.is_global()]
    used = {symbol.get_name() for symbol in found}
    defined = {symbol.get_name() for symbol in found if symbol.is_assigned() or symbol.is_imported()}
    for child in table.get_children():
        below = _globals(child)
        used |= below[0]
        defined |= below[1]
    return used, defined
