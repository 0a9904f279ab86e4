"""The 27 tools of NeMo-Gym's workplace assistant. Its rows do not contain their tables: see `nemo_gym_tables`.

Arguments and outputs are those of nemo-gym 0.4.0, with three differences: error messages are our own, queries are
plain text instead of regular expressions, and times follow ISO 8601.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from statistics import fmean
from typing import Any

from cascade_rl.rl_stages.environments.nemo_gym_tables import (
    CALENDAR,
    CUSTOMERS,
    DIRECTORY,
    EMAIL,
    FILES,
    PLOTS,
    TASKS,
    VISITS,
)
from cascade_rl.rl_stages.environments.office import Office, Record, Tool, ToolError, field_of

Row = dict[str, str | None]

NOW = "2023-11-30 23:59:00"  # the time at which mail is sent, as in the rows' system prompt

CHOICES = {
    "list_name": ("Backlog", "In Progress", "In Review", "Completed"),
    "board": ("Back end", "Front end", "Design"),
    "status": ("Qualified", "Won", "Lost", "Lead", "Proposal"),
    "product_interest": ("Software", "Hardware", "Services", "Consulting", "Training"),
    "value_to_plot": (
        *("total_visits", "session_duration_seconds", "user_engaged"),
        *("visits_direct", "visits_referral", "visits_search_engine", "visits_social_media"),
    ),
    "plot_type": ("bar", "line", "scatter", "histogram"),
}
ADDRESSES = ("participant_email", "assigned_to_email", "customer_email", "recipient")
CUSTOMER = (
    *("assigned_to_email", "customer_name", "customer_email", "customer_phone", "last_contact_date"),
    *("product_interest", "status", "follow_up_by", "notes"),
)


# Outputs and arguments of tools.


def _shown(found: Any) -> str:
    return json.dumps({"output": found}, ensure_ascii=False, separators=(",", ":"))


def _plain_rows(office: Office, table: str) -> list[Row]:
    """The records with their ids. An empty field is null."""
    key = FILES[table][1]
    rows: list[Row] = []
    for number, row in office.rows(table).items():
        rows.append({key: number, **{name: value or None for name, value in row.items()}})
    return rows


def _page(many: str, found: Sequence[Any], page: str = "1", page_size: str = "5") -> str:
    """One page of the results; the last page if there are fewer than `page`."""
    size, number = _whole("page_size", page_size), _whole("page", page)
    if not found:
        return _shown(f"No {many} found.")
    pages = -(-len(found) // size)
    number = min(number, pages)
    pagination = {f"total_{many}": len(found), "page": number, "page_size": size, "total_pages": pages}
    return _shown({many: found[(number - 1) * size : number * size], "pagination": pagination})


def _whole(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0):
        raise ToolError(f"expected a whole number from 1 to 999999999 as {name}; found {text[:20]}")
    return int(text)


def _time(name: str, text: str) -> datetime:
    try:
        return datetime.fromisoformat(text).replace(tzinfo=None)
    except ValueError:
        raise ToolError(f"expected YYYY-MM-DD HH:MM:SS as {name}; found {text}") from None


def _checked(given: Record) -> dict[str, str]:
    """The values as they are stored. Raises ToolError on a value that its field does not allow."""
    for name, value in given.items():
        if name in CHOICES and value not in CHOICES[name]:
            raise ToolError(f"expected {name} to be one of {', '.join(CHOICES[name])}; found {value}")
        if name == "event_start":
            _time(name, value)
        if name == "duration":
            _whole(name, value)
        if name == "recipient" and not ("@" in value and "." in value):
            raise ToolError(f"expected an email address as recipient; found {value}")
    return _stored(given)


def _stored(given: Record) -> dict[str, str]:
    return {name: value.lower() if name in ADDRESSES else value for name, value in given.items()}


def _require_colleague(office: Office, address: str) -> None:
    if address not in {row["assigned_to_email"].lower() for row in office.rows(TASKS).values()}:
        raise ToolError(f"nobody of the team has the address {address}")


def _has(row: Row, given: Record) -> bool:
    return all(text.lower() in (row[name] or "").lower() for name, text in given.items())


# Tools that several tables share.


def _getter(table: str) -> Tool:
    key = FILES[table][1]

    def get(office: Office, **given: str) -> str:
        row = {key: given[key], **office.get(table, given[key])}
        return _shown({given["field"]: field_of(row, given["field"]) or None})

    return Tool(get, (key, "field"))


def _deleter(table: str) -> Tool:
    key = FILES[table][1]

    def delete(office: Office, **given: str) -> str:
        office.remove(table, given[key])
        return _done(key, "deleted")

    return Tool(delete, (key,))


def _updater(table: str) -> Tool:
    key = FILES[table][1]

    def update(office: Office, **given: str) -> str:
        field = given["field"]
        value = _checked({field: given["new_value"]})[field]
        if (table, field) == (TASKS, "assigned_to_email"):
            _require_colleague(office, value)
        office.change(table, given[key], field, value)
        return _done(key, "updated")

    return Tool(update, (key, "field", "new_value"))


def _done(key: str, what: str) -> str:
    return _shown(f"{key.removesuffix('_id').capitalize()} {what} successfully.")


def _added(office: Office, table: str, record: Record) -> str:
    key = f"{office.next_number(table):08}"
    office.add(table, key, record)
    return _shown(key)


# Tools of one table.


def _find_address(office: Office, name: str) -> str:
    addresses = [row["email"] for row in office.rows(DIRECTORY).values()]
    return _shown([address for address in addresses if name.lower() in address])


def _search_emails(office: Office, query: str = "", date_min: str = "", date_max: str = "", **page: str) -> str:
    first, last = (_time("date", text).date().isoformat() if text else text for text in (date_min, date_max))
    words = query.lower().split()

    def wanted(email: Row) -> bool:
        text = f"{email['subject']} {email['body']} {email['sender/recipient']}".lower()
        day = str(email["sent_datetime"])[:10]
        return all(word in text for word in words) and first <= day and (not last or day <= last)

    found = filter(wanted, _plain_rows(office, EMAIL))
    return _page("emails", sorted(found, key=lambda email: str(email["sent_datetime"]), reverse=True), **page)


def _send(office: Office, recipient: str, subject: str, body: str) -> str:
    address = _checked({"recipient": recipient})["recipient"]
    record = {"inbox/outbox": "outbox", "sender/recipient": address, "subject": subject, "sent_datetime": NOW}
    office.add(EMAIL, str(office.next_number(EMAIL)), {**record, "body": body})
    return _done("email_id", "sent")


def _forward(office: Office, email_id: str, recipient: str) -> str:
    email = office.get(EMAIL, email_id)
    _send(office, recipient, f"FW: {email['subject']}", email["body"])
    return _done("email_id", "forwarded")


def _reply(office: Office, email_id: str, body: str) -> str:
    email = office.get(EMAIL, email_id)
    _send(office, email["sender/recipient"], f"RE: {email['subject']}", body)
    return _done("email_id", "replied")


def _search_events(office: Office, query: str = "", time_min: str = "", time_max: str = "", **page: str) -> str:
    first = _time("time_min", time_min) if time_min else datetime.min
    last = _time("time_max", time_max) if time_max else datetime.max

    def begins(event: Row) -> datetime:
        return _time("event_start", str(event["event_start"]))

    events = _plain_rows(office, CALENDAR)
    named = [e for e in events if _has(e, {"event_name": query}) or _has(e, {"participant_email": query})]
    found = [event for event in named if first <= begins(event) <= last]
    return _page("events", sorted(found, key=begins, reverse=True), **page)


def _create_event(office: Office, **given: str) -> str:
    return _added(office, CALENDAR, _checked(given))


def _search_tasks(office: Office, assigned_to_email: str = "", **given: str) -> str:
    if not (given or assigned_to_email):
        raise ToolError("expected something to search for; found nothing")
    owners = (assigned_to_email.lower(),) if assigned_to_email else ()
    tasks = [task for task in _plain_rows(office, TASKS) if _has(task, given)]
    return _shown([task for task in tasks if not owners or str(task["assigned_to_email"]).lower() in owners])


def _create_task(office: Office, **given: str) -> str:
    record = _checked(given)
    _require_colleague(office, record["assigned_to_email"])
    return _added(office, TASKS, record)


def _search_customers(office: Office, page: str = "1", page_size: str = "5", **given: str) -> str:
    if not given:
        raise ToolError("expected something to search for; found nothing")
    limits = {name: text for name, text in given.items() if name.endswith(("_min", "_max"))}
    texts = {name: text for name, text in given.items() if name not in limits}

    def within(row: Row) -> bool:
        return all(_within(row[name[:-4]], name[-4:], text) for name, text in limits.items())

    found = [row for row in _plain_rows(office, CUSTOMERS) if _has(row, texts) and within(row)]
    return _page("customers", found, page, page_size)


def _within(value: str | None, side: str, limit: str) -> bool:
    return value is not None and (value >= limit if side == "_min" else value <= limit)


def _add_customer(office: Office, **given: str) -> str:
    return _added(office, CUSTOMERS, dict.fromkeys(CUSTOMER, "") | _stored(given))  # unchecked, as in nemo-gym


def _by_day(value: Callable[[list[dict[str, Any]]], float]) -> Callable[..., str]:
    """A tool that shows `value` of each day's visits."""

    def count(office: Office, time_min: str = "", time_max: str = "") -> str:
        return _shown({day: value(visits) for day, visits in _days(office, time_min, time_max)})

    return count


def _visits(office: Office) -> list[dict[str, Any]]:
    return [{**row, "user_engaged": row["user_engaged"] == "True"} for row in office.rows(VISITS).values()]


def _days(office: Office, time_min: str, time_max: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    days: dict[str, list[dict[str, Any]]] = {}
    for visit in _visits(office):
        if time_min <= visit["date_of_visit"] and (not time_max or visit["date_of_visit"] <= time_max):
            days.setdefault(visit["date_of_visit"], []).append(visit)
    yield from sorted(days.items())


def _engaged(visits: Iterable[dict[str, Any]]) -> int:
    return sum(visit["user_engaged"] for visit in visits)


def _duration(visits: Iterable[dict[str, Any]]) -> float:
    return fmean(float(visit["session_duration_seconds"]) for visit in visits)


def _sources(office: Office, time_min: str = "", time_max: str = "", traffic_source: str = "") -> str:
    sources = (traffic_source,) if traffic_source else {visit["traffic_source"] for visit in _visits(office)}
    days = _days(office, time_min, time_max)
    return _shown({day: sum(visit["traffic_source"] in sources for visit in visits) for day, visits in days})


def _visitor(office: Office, visitor_id: str) -> str:
    found = [visit for visit in _visits(office) if visit["visitor_id"] == visitor_id]
    return _shown(found or "Visitor not found.")


def _plot(office: Office, **given: str) -> str:
    _checked(given)
    path = "plots/{time_min}_{time_max}_{value_to_plot}_{plot_type}.png".format(**given)
    office.add(PLOTS, str(office.next_number(PLOTS)), {"file_path": path})
    return _shown(path)


PAGE = ("page", "page_size")
PERIOD = ("time_min", "time_max")
TASK = ("task_name", "assigned_to_email", "list_name", "due_date", "board")
TOOLS: dict[str, Tool] = {
    "company_directory_find_email_address": Tool(_find_address, ("name",)),
    "email_get_email_information_by_id": _getter(EMAIL),
    "email_search_emails": Tool(_search_emails, (), ("query", "date_min", "date_max", *PAGE)),
    "email_send_email": Tool(_send, ("recipient", "subject", "body")),
    "email_delete_email": _deleter(EMAIL),
    "email_forward_email": Tool(_forward, ("email_id", "recipient")),
    "email_reply_email": Tool(_reply, ("email_id", "body")),
    "calendar_get_event_information_by_id": _getter(CALENDAR),
    "calendar_search_events": Tool(_search_events, (), ("query", *PERIOD, *PAGE)),
    "calendar_create_event": Tool(_create_event, ("event_name", "participant_email", "event_start", "duration")),
    "calendar_delete_event": _deleter(CALENDAR),
    "calendar_update_event": _updater(CALENDAR),
    "analytics_engaged_users_count": Tool(_by_day(_engaged), (), PERIOD),
    "analytics_get_visitor_information_by_id": Tool(_visitor, ("visitor_id",)),
    "analytics_create_plot": Tool(_plot, (*PERIOD, "value_to_plot", "plot_type")),
    "analytics_traffic_source_count": Tool(_sources, (), (*PERIOD, "traffic_source")),
    "analytics_total_visits_count": Tool(_by_day(len), (), PERIOD),
    "analytics_get_average_session_duration": Tool(_by_day(_duration), (), PERIOD),
    "project_management_get_task_information_by_id": _getter(TASKS),
    "project_management_search_tasks": Tool(_search_tasks, (), TASK),
    "project_management_create_task": Tool(_create_task, TASK),
    "project_management_delete_task": _deleter(TASKS),
    "project_management_update_task": _updater(TASKS),
    "customer_relationship_manager_search_customers": Tool(
        _search_customers,
        (),
        (
            *("customer_name", "customer_email", "product_interest", "status", "assigned_to_email"),
            *("last_contact_date_min", "last_contact_date_max", "follow_up_by_min", "follow_up_by_max"),
            *PAGE,
        ),
    ),
    "customer_relationship_manager_update_customer": _updater(CUSTOMERS),
    "customer_relationship_manager_add_customer": Tool(
        _add_customer,
        ("customer_name", "assigned_to_email", "status"),
        ("customer_email", "customer_phone", "last_contact_date", "product_interest", "notes", "follow_up_by"),
    ),
    "customer_relationship_manager_delete_customer": _deleter(CUSTOMERS),
}
