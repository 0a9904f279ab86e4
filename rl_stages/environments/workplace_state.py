"""A small office: records in tables, the tools that read and change them, and when two offices are the same.

Tools have the names and arguments of NeMo-Gym's workplace assistant, without its analytics. The state is the row's
own, or START; that of NeMo-Gym is not part of its rows and not of this repository.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

Record = dict[str, str]
Tables = Mapping[str, Mapping[str, Record]]

FIELDS = {
    "directory": ("name", "email"),
    "email": ("box", "address", "subject", "body"),
    "calendar": ("event_name", "participant_email", "event_start", "duration"),
    "project_management": ("task_name", "assigned_to_email", "list_name", "due_date", "board"),
    "customer_relationship_manager": (
        *("customer_name", "assigned_to_email", "customer_email", "customer_phone", "last_contact_date"),
        *("product_interest", "status", "notes", "follow_up_by"),
    ),
}
"""The fields of each table's records; a record's id is its key, and names the table: "email-3"."""


class ToolError(ValueError):
    """What a tool says to a call that it cannot do. Nothing has changed."""


class Office:
    """One state, changed by calls."""

    def __init__(self, tables: Tables) -> None:
        self.tables = {name: {key: dict(record) for key, record in tables.get(name, {}).items()} for name in FIELDS}

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """What the tool says. Raises ToolError on an unknown tool, wrong arguments and records that are not there."""
        if name not in TOOLS:
            raise ToolError(f"there is no tool {name}")
        tool, required, optional = TOOLS[name]
        if missing := set(required) - arguments.keys():
            raise ToolError(f"{name} needs {', '.join(sorted(missing))}")
        if unknown := arguments.keys() - {*required, *optional}:
            raise ToolError(f"{name} does not take {', '.join(sorted(unknown))}")
        if wrong := [key for key, value in arguments.items() if not _is_text(value)]:
            raise ToolError(f"{name}: expected text in {', '.join(sorted(wrong))}")
        return tool(self, **{key: str(value) for key, value in arguments.items()})

    def same_as(self, other: Office) -> bool:
        """Whether all records are the same, whatever their ids, their order, and the case and spaces of their texts."""
        return all(_content(self.tables[name]) == _content(other.tables[name]) for name in FIELDS)

    def find(self, table: str, query: str) -> str:
        """JSON of the records that have `query` in one of their fields, by id."""
        wanted = _plain(query)
        rows = self.tables[table].items()
        found = {key: row for key, row in rows if any(wanted in _plain(value) for value in row.values())}
        return json.dumps(found)

    def get(self, table: str, key: str) -> Record:
        if key not in self.tables[table]:
            raise ToolError(f"there is no {table} record {key}")
        return self.tables[table][key]

    def add(self, table: str, **values: str) -> str:
        numbers = [int(key.rpartition("-")[2]) for key in self.tables[table]]
        key = f"{table}-{max(numbers, default=0) + 1}"
        self.tables[table][key] = {name: values.get(name, "") for name in FIELDS[table]}
        return key

    def change(self, table: str, key: str, field: str, value: str) -> str:
        if field not in self.get(table, key):
            raise ToolError(f"there is no field {field}: expected one of {', '.join(FIELDS[table])}")
        self.tables[table][key][field] = value
        return "done"

    def remove(self, table: str, key: str) -> str:
        self.get(table, key)
        del self.tables[table][key]
        return "done"

    def send(self, address: str, subject: str, body: str) -> str:
        return self.add("email", box="outbox", address=address, subject=subject, body=body)


def _is_text(value: object) -> bool:
    """Or a number that stands for it."""
    return isinstance(value, str) or (type(value) is int and value.bit_length() < 64)


def _content(rows: Mapping[str, Record]) -> Counter[tuple[tuple[str, str], ...]]:
    return Counter(tuple(sorted((name, _plain(value)) for name, value in row.items())) for row in rows.values())


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


def _email_address(office: Office, name: str) -> str:
    found = [row["email"] for row in office.tables["directory"].values() if _plain(name) in _plain(row["name"])]
    return json.dumps(found)


def _forward(office: Office, email_id: str, recipient: str) -> str:
    email = office.get("email", email_id)
    return office.send(recipient, f"FW: {email['subject']}", email["body"])


def _reply(office: Office, email_id: str, body: str) -> str:
    email = office.get("email", email_id)
    return office.send(email["address"], f"RE: {email['subject']}", body)


Tool = tuple[Callable[..., str], tuple[str, ...], tuple[str, ...]]


def _table_tools(table: str, noun: str, many: str, create: str, required: tuple[str, ...]) -> dict[str, Tool]:
    """The tools that every table of things has: get, search, create, update, delete."""
    key, optional = f"{noun}_id", tuple(name for name in FIELDS[table] if name not in required)

    def get(office: Office, **given: str) -> str:
        row = office.get(table, given[key])
        if given["field"] not in row:
            raise ToolError(f"there is no field {given['field']}: expected one of {', '.join(FIELDS[table])}")
        return row[given["field"]]

    return {
        f"{table}_get_{noun}_information_by_id": (get, (key, "field"), ()),
        f"{table}_search_{many}": (lambda office, query: office.find(table, query), ("query",), ()),
        f"{table}_{create}_{noun}": (lambda office, **given: office.add(table, **given), required, optional),
        f"{table}_update_{noun}": (
            lambda office, **given: office.change(table, given[key], given["field"], given["new_value"]),
            (key, "field", "new_value"),
            (),
        ),
        f"{table}_delete_{noun}": (lambda office, **given: office.remove(table, given[key]), (key,), ()),
    }


TOOLS: dict[str, Tool] = {
    "company_directory_find_email_address": (_email_address, ("name",), ()),
    **_table_tools("calendar", "event", "events", "create", FIELDS["calendar"]),
    **_table_tools("project_management", "task", "tasks", "create", FIELDS["project_management"]),
    **_table_tools(
        *("customer_relationship_manager", "customer", "customers", "add"),
        ("customer_name", "assigned_to_email", "status"),
    ),
    **{
        name: tool
        for name, tool in _table_tools("email", "email", "emails", "add", ()).items()
        if not name.startswith(("email_add", "email_update"))  # mail is sent, and what was sent stays
    },
    "email_send_email": (
        lambda office, recipient, subject, body: office.send(recipient, subject, body),
        ("recipient", "subject", "body"),
        (),
    ),
    "email_forward_email": (_forward, ("email_id", "recipient"), ()),
    "email_reply_email": (_reply, ("email_id", "body"), ()),
}
"""Name -> function of the office, required and optional arguments, all of them text."""

NAMES = ("Tom", "Ann", "Sam", "Mia", "Ben", "Eva")
START: Tables = {
    "directory": {
        f"directory-{i}": {"name": name, "email": f"{name.lower()}@office.example"} for i, name in enumerate(NAMES, 1)
    },
    "email": {
        f"email-{i}": {"box": "inbox", "address": f"{name.lower()}@office.example", "subject": subject, "body": body}
        for i, (name, subject, body) in enumerate(
            (
                ("Tom", "Books for the new team", "Which books do we buy?"),
                ("Ann", "Lunch on Friday", "Are you free at noon?"),
                ("Sam", "Prototype", "The prototype is ready for you to test."),
            ),
            1,
        )
    },
    "calendar": {
        f"calendar-{i}": dict(zip(FIELDS["calendar"], values, strict=True))
        for i, values in enumerate(
            (
                ("Review", "mia@office.example", "2026-03-02 10:00:00", "60"),
                ("Plan", "ben@office.example", "2026-03-03 14:00:00", "30"),
            ),
            1,
        )
    },
    "project_management": {
        f"project_management-{i}": dict(zip(FIELDS["project_management"], values, strict=True))
        for i, values in enumerate(
            (
                ("Write the report", "eva@office.example", "In Progress", "2026-03-06", "Back end"),
                ("Fix the login", "tom@office.example", "Backlog", "2026-03-09", "Front end"),
            ),
            1,
        )
    },
    "customer_relationship_manager": {
        "customer_relationship_manager-1": dict(
            zip(
                FIELDS["customer_relationship_manager"],
                ("Lena", "ann@office.example", "lena@shop.example", "", "2026-02-20", "Training", "Lead", "", ""),
                strict=True,
            )
        )
    },
}
