"""An office: records in tables, tools that read and change them, and the comparison of two offices.

Many episodes start with the same tables. Each stores only its own changes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Record = Mapping[str, str]
Tables = Mapping[str, Mapping[str, Record]]
"""Table -> id -> record. An id ends in a number."""

AS_WRITTEN = ("status", "list_name", "board")
"""Fields whose values are names: they are compared exactly."""


class ToolError(ValueError):
    """A call that the tool cannot carry out; the text is the tool's reply. Nothing has changed."""


@dataclass(frozen=True)
class Tool:
    """`act(office, **arguments)` returns what it found or did. All arguments are non-empty text."""

    act: Callable[..., str]
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()


class Office:
    """One state, changed by tool calls. `start` is never modified."""

    def __init__(self, start: Tables, tools: Mapping[str, Tool]) -> None:
        self.start, self.tools = start, tools
        self.changed: dict[str, dict[str, Record | None]] = defaultdict(dict)

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """The tool's reply. Raises ToolError on an unknown tool, on wrong arguments and on a missing record."""
        if name not in self.tools:
            raise ToolError(f"there is no tool {name}")
        tool = self.tools[name]
        given = {key: value for key, value in arguments.items() if value not in (None, "")}
        if missing := set(tool.required) - given.keys():
            raise ToolError(f"{name} needs {', '.join(sorted(missing))}")
        if unknown := arguments.keys() - {*tool.required, *tool.optional}:
            raise ToolError(f"{name} does not take {', '.join(sorted(unknown))}")
        if wrong := [key for key, value in given.items() if not _is_text(value)]:
            raise ToolError(f"{name}: expected text in {', '.join(sorted(wrong))}")
        return tool.act(self, **{key: str(value) for key, value in given.items()})

    def same_as(self, other: Office) -> bool:
        """Whether two offices with the same start have the same records.

        Ids, order, case and white space do not count, except that AS_WRITTEN fields are compared exactly.
        """
        return self._difference() == other._difference()

    def rows(self, table: str) -> dict[str, Record]:
        """The records by id: those of the start in their order, then new ones."""
        rows = {**self.start.get(table, {}), **self.changed[table]}
        return {key: row for key, row in rows.items() if row is not None}

    def get(self, table: str, key: str) -> Record:
        changed = self.changed[table]
        found = changed[key] if key in changed else self.start.get(table, {}).get(key)
        if found is None:
            raise ToolError(f"there is no {table} record {key}")
        return found

    def next_number(self, table: str) -> int:
        """One more than the highest number of any id."""
        return max((int(key.rpartition("-")[2]) for key in self.rows(table)), default=0) + 1

    def add(self, table: str, key: str, record: Record) -> None:
        self.changed[table][key] = record

    def change(self, table: str, key: str, field: str, value: str) -> None:
        record = self.get(table, key)
        field_of(record, field)
        self.changed[table][key] = {**record, field: value}

    def remove(self, table: str, key: str) -> None:
        self.get(table, key)
        self.changed[table][key] = None

    def _difference(self) -> Counter[tuple[str, ...]]:
        """How many more of each record there are than at the start; negative for fewer."""
        more: Counter[tuple[str, ...]] = Counter()
        for table, rows in self.changed.items():
            for key, row in rows.items():
                more.update([_content(table, row)] if row else [])
                before = self.start.get(table, {}).get(key)
                more.subtract([_content(table, before)] if before else [])
        return Counter({content: count for content, count in more.items() if count})


def field_of(record: Record, field: str) -> str:
    """The field's value. Raises ToolError if there is no such field."""
    if field not in record:
        raise ToolError(f"there is no field {field}: expected one of {', '.join(record)}")
    return record[field]


def plain(text: str) -> str:
    """The text as most fields compare it: without case, and with single spaces."""
    return " ".join(text.casefold().split())


def _content(table: str, row: Record) -> tuple[str, ...]:
    return table, *(value if name in AS_WRITTEN else plain(value) for name, value in sorted(row.items()))


def _is_text(value: object) -> bool:
    """Whether an argument is text, or a whole number that stands for text."""
    return isinstance(value, str) or (type(value) is int and value.bit_length() < 64)
