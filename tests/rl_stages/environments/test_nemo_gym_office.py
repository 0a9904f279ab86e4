"""The 27 tools on an office of our own: what they find, change and refuse, and what an episode is worth."""

import json
from typing import Any

import pytest

from cascade_rl.rl_stages.environments.environment import End, Observation
from cascade_rl.rl_stages.environments.nemo_gym_office import TOOLS
from cascade_rl.rl_stages.environments.nemo_gym_tables import start
from cascade_rl.rl_stages.environments.office import Office, ToolError
from cascade_rl.rl_stages.environments.workplace import Workplace
from cascade_rl.rl_stages.tasks.load_tasks import parse_task

pytestmark = pytest.mark.usefixtures("own_office")

CRM, TASKS = "customer_relationship_manager", "project_management"

RENAME = {
    "name": "calendar_update_event",
    "arguments": '{"event_id": "00000017", "field": "event_name", "new_value": "X"}',
}
ROW = {
    "id": 1,
    "responses_create_params": {"input": [{"role": "user", "content": "Rename the last event of November 27 to X."}]},
    "ground_truth": [RENAME],
    "category": "workplace_assistant_calendar",
    "environment_name": "workplace_assistant",
    "agent_ref": {"type": "responses_api_agents", "name": "workplace_assistant_simple_agent"},
}


def office() -> Office:
    return Office(start(), TOOLS)


def said(tool: str, /, **arguments: Any) -> Any:
    return json.loads(office().call(tool, arguments))["output"]


def test_a_row_without_an_office_is_about_this_one() -> None:
    task = parse_task(ROW, "rows:1", "0")
    episode = Workplace().start(task)
    found = {"name": "calendar_search_events", "arguments": {"time_min": "2023-11-27", "time_max": "2023-11-28"}}
    shown = episode.step(f"<tool_call>{json.dumps(found)}</tool_call>")
    assert isinstance(shown, Observation)
    events = json.loads(shown.messages[0]["content"])["output"]["events"]
    assert events[0]["event_id"] == "00000017"
    call = {"name": RENAME["name"], "arguments": json.loads(RENAME["arguments"]) | {"new_value": " x"}}
    assert isinstance(episode.step(f"<tool_call>{json.dumps(call)}</tool_call>"), Observation)
    end = episode.step("Done.")
    assert isinstance(end, End) and end.verdict.score == 1.0


def test_tools_in_xml_take_numbers_too() -> None:
    episode = Workplace().start(parse_task(ROW, "rows:1", "0"))
    parameters = "<parameter=query>barge</parameter><parameter=page_size>2</parameter>"
    shown = episode.step(f"<tool_call><function=email_search_emails>{parameters}</function></tool_call>")
    assert isinstance(shown, Observation)
    found = json.loads(shown.messages[0]["content"])["output"]
    assert [email["email_id"] for email in found["emails"]] == ["00000013", "00000021"]
    assert found["pagination"] == {"total_emails": 11, "page": 1, "page_size": 2, "total_pages": 6}


FOUND: list[tuple[str, dict[str, Any], list[str]]] = [
    ("email_search_emails", {"query": "hull barge"}, ["00000013", "00000017", "00000003", "00000039"]),
    (
        "email_search_emails",
        {"date_min": "2023-11-28", "date_max": "2023-11-29"},
        ["00000010", "00000033", "00000013"],
    ),
    (
        "calendar_search_events",
        {"query": "sea trial", "time_min": "2023-11-20", "time_max": "2023-11-28 12:00:00"},
        ["00000018", "00000021"],
    ),
    (f"{TASKS}_search_tasks", {"task_name": "dinghy", "list_name": "review"}, ["00000012", "00000020", "00000023"]),
    (f"{TASKS}_search_tasks", {"task_name": "dinghy", "board": "Design"}, ["00000020", "00000023"]),
    (
        f"{TASKS}_search_tasks",
        {"assigned_to_email": "Ravi.Nair@quay.example", "due_date": "2023-11-1"},
        ["00000004", "00000028"],
    ),
    (f"{TASKS}_search_tasks", {"task_name": "canoe"}, []),
    (
        f"{CRM}_search_customers",
        {"customer_name": "heron", "follow_up_by_min": "2023-12-20"},
        ["00000000", "00000005", "00000015"],
    ),
    (f"{CRM}_search_customers", {"product_interest": "hardware", "status": "qualified"}, ["00000013", "00000016"]),
    (
        f"{CRM}_search_customers",
        {"status": "Lost", "last_contact_date_max": "2023-11-14 10:00:00"},
        ["00000001", "00000010", "00000011"],
    ),
]


@pytest.mark.parametrize(("tool", "arguments", "ids"), FOUND)
def test_every_part_of_a_search_counts(tool: str, arguments: dict[str, Any], ids: list[str]) -> None:
    found = said(tool, **arguments)
    rows = found if isinstance(found, list) else found[tool.rpartition("_")[2]]
    assert [next(iter(row.values())) for row in rows] == ids


PERIOD = {"time_min": "2023-11-01", "time_max": "2023-11-02"}
SAID: list[tuple[str, dict[str, Any], Any]] = [
    ("company_directory_find_email_address", {"name": "RA"}, ["otis.brandt@quay.example", "ravi.nair@quay.example"]),
    (
        "email_get_email_information_by_id",
        {"email_id": "00000005", "field": "subject"},
        {"subject": "The engine of the sloop"},
    ),
    ("calendar_get_event_information_by_id", {"event_id": "00000021", "field": "duration"}, {"duration": "90"}),
    (f"{TASKS}_get_task_information_by_id", {"task_id": "00000003", "field": "board"}, {"board": "Back end"}),
    ("analytics_total_visits_count", PERIOD, {"2023-11-01": 6, "2023-11-02": 6}),
    ("analytics_engaged_users_count", {"time_min": "2023-11-09"}, {"2023-11-09": 3, "2023-11-10": 2}),
    (
        "analytics_traffic_source_count",
        {**PERIOD, "traffic_source": "search engine"},
        {"2023-11-01": 1, "2023-11-02": 3},
    ),
    (
        "analytics_get_average_session_duration",
        {"time_min": "2023-11-08", "time_max": "2023-11-08"},
        {"2023-11-08": 40.5},
    ),
    (
        "analytics_get_visitor_information_by_id",
        {"visitor_id": "0038"},
        [
            {
                "date_of_visit": "2023-11-09",
                "visitor_id": "0038",
                "page_views": "4",
                "session_duration_seconds": "80",
                "traffic_source": "social media",
                "user_engaged": False,
            }
        ],
    ),
    ("analytics_get_visitor_information_by_id", {"visitor_id": "0040"}, "Visitor not found."),
]


@pytest.mark.parametrize(("tool", "arguments", "output"), SAID)
def test_tools_say_what_is_in_the_tables(tool: str, arguments: dict[str, Any], output: Any) -> None:
    assert said(tool, **arguments) == output


MAIL = {"inbox/outbox": "outbox", "sent_datetime": "2023-11-30 23:59:00"}
EVENT = {"event_name": "Launch", "participant_email": "lio.park@quay.example", "event_start": "2023-12-01 10:00:00"}
TASK = {"task_name": "Oil the winch", "assigned_to_email": "lio.park@quay.example", "list_name": "Backlog"}
CUSTOMER = {"customer_name": "Heron Ice", "assigned_to_email": "lio.park@quay.example", "status": "Lead"}
CHANGED: list[tuple[str, dict[str, Any], str, str, str, dict[str, str] | None]] = [
    (
        "email_send_email",
        {"recipient": "Ravi.Nair@quay.example", "subject": "Rudder", "body": "Done."},
        *("Email sent successfully.", "email", "40"),
        {**MAIL, "sender/recipient": "ravi.nair@quay.example", "subject": "Rudder", "body": "Done."},
    ),
    (
        "email_forward_email",
        {"email_id": "00000005", "recipient": "ravi.nair@quay.example"},
        *("Email forwarded successfully.", "email", "40"),
        {**MAIL, "sender/recipient": "ravi.nair@quay.example", "subject": "FW: The engine of the sloop"},
    ),
    (
        "email_reply_email",
        {"email_id": "00000005", "body": "Yes."},
        *("Email replied successfully.", "email", "40"),
        {**MAIL, "sender/recipient": "lio.park@quay.example", "subject": "RE: The engine of the sloop", "body": "Yes."},
    ),
    ("email_delete_email", {"email_id": "00000005"}, "Email deleted successfully.", "email", "00000005", None),
    ("calendar_create_event", {**EVENT, "duration": 30}, "00000030", "calendar", "00000030", EVENT),
    (
        "calendar_update_event",
        {"event_id": "00000021", "field": "duration", "new_value": "45"},
        *("Event updated successfully.", "calendar", "00000021"),
        {"event_name": "Sea trial of the ferry", "duration": "45"},
    ),
    ("calendar_delete_event", {"event_id": "00000021"}, "Event deleted successfully.", "calendar", "00000021", None),
    (
        f"{TASKS}_create_task",
        {**TASK, "due_date": "2023-12-05", "board": "Design"},
        *("00000030", TASKS, "00000030"),
        TASK,
    ),
    (
        f"{TASKS}_update_task",
        {"task_id": "00000003", "field": "assigned_to_email", "new_value": "Lio.Park@quay.example"},
        *("Task updated successfully.", TASKS, "00000003"),
        {"task_name": "Repair the hull of the sloop", "assigned_to_email": "lio.park@quay.example"},
    ),
    (f"{TASKS}_delete_task", {"task_id": "00000003"}, "Task deleted successfully.", TASKS, "00000003", None),
    (f"{CRM}_add_customer", CUSTOMER, "00000020", CRM, "00000020", {**CUSTOMER, "notes": ""}),
    (
        f"{CRM}_update_customer",
        {"customer_id": "00000003", "field": "status", "new_value": "Won"},
        *("Customer updated successfully.", CRM, "00000003"),
        {"customer_name": "Tide Chandlery", "status": "Won"},
    ),
    (f"{CRM}_delete_customer", {"customer_id": "00000003"}, "Customer deleted successfully.", CRM, "00000003", None),
    (
        "analytics_create_plot",
        {**PERIOD, "value_to_plot": "total_visits", "plot_type": "bar"},
        *("plots/2023-11-01_2023-11-02_total_visits_bar.png", "plots", "1"),
        {"file_path": "plots/2023-11-01_2023-11-02_total_visits_bar.png"},
    ),
]


@pytest.mark.parametrize(("tool", "arguments", "output", "table", "key", "fields"), CHANGED)
def test_one_record_changes(
    tool: str, arguments: dict[str, Any], output: str, table: str, key: str, fields: dict[str, str] | None
) -> None:
    one, before = office(), office().rows(table)
    assert json.loads(one.call(tool, arguments)) == {"output": output}
    after = one.rows(table)
    assert {other for other in before | after if before.get(other) != after.get(other)} == {key}
    assert fields is None if key not in after else fields is not None and fields.items() <= after[key].items()


def test_every_tool_has_a_call_above() -> None:
    assert {call[0] for call in (*FOUND, *SAID, *CHANGED)} == TOOLS.keys()
    assert len(TOOLS) == 27


def test_what_was_changed_is_found_and_what_was_deleted_is_not() -> None:
    one = office()
    key = json.loads(
        one.call(f"{CRM}_add_customer", {"customer_name": "Zoe", "assigned_to_email": "A@b.c", "status": "Lead"})
    )
    assert key == {"output": "00000020"}
    found = json.loads(one.call(f"{CRM}_search_customers", {"customer_name": "zoe"}))["output"]["customers"]
    assert (found[0]["customer_id"], found[0]["assigned_to_email"], found[0]["notes"]) == ("00000020", "a@b.c", None)
    one.call(f"{CRM}_delete_customer", {"customer_id": "00000020"})
    assert "No customers found." in one.call(f"{CRM}_search_customers", {"customer_name": "zoe"})
    assert one.same_as(office())


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("email_search_emails", {"page": "first"}, "whole number from 1 to 999999999 as page"),
        ("email_search_emails", {"page": "9" * 5000}, "as page; found 9"),
        ("email_search_emails", {"page_size": 0}, "as page_size; found 0"),
        ("email_search_emails", {"date_min": "yesterday"}, "expected YYYY-MM-DD"),
        ("email_send_email", {"recipient": "tom", "subject": "a", "body": "b"}, "an email address"),
        ("email_reply_email", {"email_id": "00009999", "body": "b"}, "no email record"),
        ("calendar_update_event", {"event_id": "00000017", "field": "color", "new_value": "red"}, "no field color"),
        ("calendar_update_event", {"event_id": "00000017", "field": "duration", "new_value": "-5"}, "found -5"),
        (f"{TASKS}_search_tasks", {}, "something to search for"),
        (f"{TASKS}_update_task", {"task_id": "00000003", "field": "board", "new_value": "design"}, "one of Back end"),
        (
            f"{TASKS}_update_task",
            {"task_id": "00000003", "field": "assigned_to_email", "new_value": "x@y.z"},
            "nobody of the team",
        ),
        (
            "analytics_create_plot",
            {"time_min": "a", "time_max": "b", "value_to_plot": "c", "plot_type": "bar"},
            "one of",
        ),
    ],
)
def test_a_call_that_cannot_be_done_changes_nothing(name: str, arguments: dict[str, Any], message: str) -> None:
    one = office()
    with pytest.raises(ToolError, match=message):
        one.call(name, arguments)
    assert one.same_as(office())


def test_two_plots_are_not_one() -> None:
    plot = {"time_min": "2023-11-01", "time_max": "2023-11-30", "value_to_plot": "total_visits", "plot_type": "bar"}
    one, two = office(), office()
    one.call("analytics_create_plot", plot)
    two.call("analytics_create_plot", plot)
    assert one.same_as(two)
    two.call("analytics_create_plot", plot)
    assert not one.same_as(two)
