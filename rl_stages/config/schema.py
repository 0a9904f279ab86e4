"""What changed in the keys of a run, number by number, so that an older run is read as what it meant.

A new key whose default does what was done before needs no number. Every other change takes the next one: a renamed or
retired key, another default, a new key whose default does something new. An old name is never used again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, is_dataclass
from typing import Any


@dataclass(frozen=True)
class Change:
    """What a number changed. A key is "Class.field"; in `before` also "GrpoStage.optimizer.lr", for one kind of stage.

    renamed  old key -> new name, without the class
    retired  key -> the value that every run has had since
    before   key, by its name of today -> the value that a run had until then where it gave none
    """

    renamed: Mapping[str, str] = field(default_factory=dict)
    retired: Mapping[str, Any] = field(default_factory=dict)
    before: Mapping[str, Any] = field(default_factory=dict)


CHANGES: dict[int, Change] = {1: Change()}  # runs without a number, 0, have the keys of 1


def current() -> int:
    return max(CHANGES)


def owners_of(node: type) -> tuple[str, ...]:
    """The names under which the table may know a class: its own, then those of the classes it extends."""
    return tuple(cls.__name__ for cls in node.__mro__ if is_dataclass(cls))


def older_default(owners: Sequence[str], name: str, since: int = 0) -> Any:
    """The value of a key, by its name of today, where a run of number `since` gave none; MISSING where it never
    changed."""
    tables = (CHANGES[number].before for number in sorted(CHANGES) if number > since)
    keys = [f"{owner}.{name}" for owner in owners]
    return next((table[key] for table in tables for key in keys if key in table), MISSING)


def todays_name(owners: Sequence[str], name: str, since: int) -> str:
    """Of a key that a run of number `since` calls `name`."""
    for number in sorted(number for number in CHANGES if number > since):
        renamed = CHANGES[number].renamed
        name = next((renamed[f"{owner}.{name}"] for owner in owners if f"{owner}.{name}" in renamed), name)
    return name


def first_name(owners: Sequence[str], name: str) -> str:
    """Of a key that is called `name` today: what it is hashed under."""
    for number in sorted(CHANGES, reverse=True):
        old = [key for key, new in CHANGES[number].renamed.items() if new == name]
        name = next((key.rpartition(".")[2] for key in old if key.rpartition(".")[0] in owners), name)
    return name


def retired(owners: Sequence[str]) -> dict[str, Any]:
    """The retired keys of a node with the values that every run has had since."""
    keys = {key: value for change in CHANGES.values() for key, value in change.retired.items()}
    return {key.rpartition(".")[2]: value for key, value in keys.items() if key.rpartition(".")[0] in owners}
