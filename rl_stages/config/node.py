"""The base class of configuration nodes, and the checks that they share."""

import re
from collections.abc import Collection
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, Self

from cascade_rl.engine.core.errors import UserError

NAME = re.compile(r"[a-z][a-z0-9_]*")


def nearest(key: str, known: Collection[str]) -> str:
    """The known key closest to `key`. Keys with the same last part, or with its initials (learning_rate: lr), take
    precedence."""
    last = key.split(".")[-1]
    ends = (last, "".join(word[:1] for word in last.split("_")))
    same_end = [name for name in known if name.split(".")[-1] in ends]
    return get_close_matches(key, same_end or list(known), n=1, cutoff=0.0)[0]


class Node:
    """A node of the tree. An unknown key is a UserError that names the nearest known key."""

    def __new__(cls, *_values: Any, **keys: Any) -> Self:
        known = [item.name for item in fields(cls)]  # type: ignore[arg-type]
        for key in keys:
            if key not in known:
                raise UserError(f"{cls.__name__} has no key '{key}'. Did you mean '{nearest(key, known)}'?")
        return super().__new__(cls)


def require(holds: bool, owner: str, expected: str, found: object) -> None:
    if not holds:
        raise UserError(f"{owner}: expected {expected}, found {found!r}.")


def check_name(owner: str, name: str) -> None:
    require(NAME.fullmatch(name) is not None, owner, "lower case letters, digits and _", name)


def at_least(minimum: int, owner: str, node: object, *names: str) -> None:
    for name in names:
        value = getattr(node, name)
        require(value >= minimum, f"{owner}.{name}", f"at least {minimum}", value)


def share(owner: str, node: object, *names: str) -> None:
    for name in names:
        value = getattr(node, name)
        require(0 <= value <= 1, f"{owner}.{name}", "a value in [0, 1]", value)
