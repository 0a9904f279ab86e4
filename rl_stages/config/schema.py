"""How the keys of a run changed, by schema number, so that an older run keeps its meaning.

A new key needs no number if its default keeps the old behaviour. Every other change takes the next number: a renamed or
retired key, a changed default, a new key whose default changes the behaviour. An old name is never used again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, is_dataclass
from typing import Any


@dataclass(frozen=True)
class Change:
    """The changes of one number. A key is "Class.field". In `before` it may also be for one kind of stage, such as
    "GrpoStage.optimizer.lr".

    renamed  old key -> new name, without the class
    retired  key -> the value that every run has had since
    before   key, by its name of today -> the default until then
    """

    renamed: Mapping[str, str] = field(default_factory=dict)
    retired: Mapping[str, Any] = field(default_factory=dict)
    before: Mapping[str, Any] = field(default_factory=dict)


CHANGES: dict[int, Change] = {1: Change()}  # runs without a number count as 0 and have the keys of 1


def current() -> int:
    return max(CHANGES)


def owners_of(node: type) -> tuple[str, ...]:
    """The names of a class in the table: its own, then those of its base classes."""
    return tuple(cls.__name__ for cls in node.__mro__ if is_dataclass(cls))


def older_default(owners: Sequence[str], name: str, since: int = 0) -> Any:
    """The default of a key, by its name of today, in a run of number `since`. MISSING if the default has not changed
    since."""
    tables = (CHANGES[number].before for number in sorted(CHANGES) if number > since)
    keys = [f"{owner}.{name}" for owner in owners]
    return next((table[key] for table in tables for key in keys if key in table), MISSING)


def todays_name(owners: Sequence[str], name: str, since: int) -> str:
    """Today's name of the key that a run of number `since` calls `name`."""
    for number in sorted(number for number in CHANGES if number > since):
        renamed = CHANGES[number].renamed
        name = next((renamed[f"{owner}.{name}"] for owner in owners if f"{owner}.{name}" in renamed), name)
    return name


def first_name(owners: Sequence[str], name: str) -> str:
    """The first name of the key that is called `name` today. Hashes use the first name."""
    for number in sorted(CHANGES, reverse=True):
        old = [key for key, new in CHANGES[number].renamed.items() if new == name]
        name = next((key.rpartition(".")[2] for key in old if key.rpartition(".")[0] in owners), name)
    return name


def retired(owners: Sequence[str]) -> dict[str, Any]:
    """The retired keys of a node, with the values that every run has had since."""
    keys = {key: value for change in CHANGES.values() for key, value in change.retired.items()}
    return {key.rpartition(".")[2]: value for key, value in keys.items() if key.rpartition(".")[0] in owners}
