"""The office of rows that bring their own tables (`initial_state`), for small models.

It has the tools of NeMo-Gym's workplace assistant except analytics, with fewer arguments and shorter outputs.
"""

from __future__ import annotations

import json

from cascade_rl.rl_stages.environments.office import Office, Tool, field_of, plain

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
"""The fields of each table's records. A record's id is its key and names the table: "email-3"."""


def _find(office: Office, table: str, query: str) -> str:
    """The records that contain `query` in one of their fields, as JSON by id."""
    rows = office.rows(table).items()
    return json.dumps({key: row for key, row in rows if any(plain(query) in plain(value) for value in row.values())})


def _add(office: Office, table: str, **values: str) -> str:
    key = f"{table}-{office.next_number(table)}"
    office.add(table, key, {name: values.get(name, "") for name in FIELDS[table]})
    return key


def _send(office: Office, recipient: str, subject: str, body: str) -> str:
    return _add(office, "email", box="outbox", address=recipient, subject=subject, body=body)


def _forward(office: Office, email_id: str, recipient: str) -> str:
    email = office.get("email", email_id)
    return _send(office, recipient, f"FW: {email['subject']}", email["body"])


def _reply(office: Office, email_id: str, body: str) -> str:
    email = office.get("email", email_id)
    return _send(office, email["address"], f"RE: {email['subject']}", body)


def _email_address(office: Office, name: str) -> str:
    people = office.rows("directory").values()
    return json.dumps([row["email"] for row in people if plain(name) in plain(row["name"])])


def _table_tools(table: str, noun: str, many: str, create: str, required: tuple[str, ...]) -> dict[str, Tool]:
    """The tools that most tables have: get, search, create, update, delete."""
    key, optional = f"{noun}_id", tuple(name for name in FIELDS[table] if name not in required)

    def get(office: Office, **given: str) -> str:
        return field_of(office.get(table, given[key]), given["field"])

    def update(office: Office, **given: str) -> str:
        office.change(table, given[key], given["field"], given["new_value"])
        return "done"

    def delete(office: Office, **given: str) -> str:
        office.remove(table, given[key])
        return "done"

    return {
        f"{table}_get_{noun}_information_by_id": Tool(get, (key, "field")),
        f"{table}_search_{many}": Tool(lambda office, query: _find(office, table, query), ("query",)),
        f"{table}_{create}_{noun}": Tool(lambda office, **given: _add(office, table, **given), required, optional),
        f"{table}_update_{noun}": Tool(update, (key, "field", "new_value")),
        f"{table}_delete_{noun}": Tool(delete, (key,)),
    }


TOOLS: dict[str, Tool] = {
    "company_directory_find_email_address": Tool(_email_address, ("name",)),
    **_table_tools("calendar", "event", "events", "create", FIELDS["calendar"]),
    **_table_tools("project_management", "task", "tasks", "create", FIELDS["project_management"]),
    **_table_tools(
        *("customer_relationship_manager", "customer", "customers", "add"),
        ("customer_name", "assigned_to_email", "status"),
    ),
    **{
        name: tool
        for name, tool in _table_tools("email", "email", "emails", "add", ()).items()
        if not name.startswith(("email_add", "email_update"))  # mail is created by sending it, and never changed
    },
    "email_send_email": Tool(_send, ("recipient", "subject", "body")),
    "email_forward_email": Tool(_forward, ("email_id", "recipient")),
    "email_reply_email": Tool(_reply, ("email_id", "body")),
}
