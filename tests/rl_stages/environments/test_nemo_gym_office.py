"""The office of NeMo-Gym's rows: what an episode there is worth, what its tools find, and what they refuse."""

import json
from typing import Any

import pytest

from cascade_rl.rl_stages.environments.environment import End, Observation
from cascade_rl.rl_stages.environments.nemo_gym_office import TOOLS, start
from cascade_rl.rl_stages.environments.office import Office, ToolError
from cascade_rl.rl_stages.environments.workplace import Workplace
from cascade_rl.rl_stages.tasks.load_tasks import parse_task

CRM, TASKS = "customer_relationship_manager", "project_management"

RENAME = {
    "name": "calendar_update_event",
    "arguments": '{"event_id": "00000252", "field": "event_name", "new_value": "X"}',
}
ROW = {
    "id": 1,
    "responses_create_params": {"input": [{"role": "user", "content": "Rename the last event of December 1 to X."}]},
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
    found = {"name": "calendar_search_events", "arguments": {"time_min": "2023-12-01", "time_max": "2023-12-02"}}
    shown = episode.step(f"<tool_call>{json.dumps(found)}</tool_call>")
    assert isinstance(shown, Observation)
    events = json.loads(shown.messages[0]["content"])["output"]["events"]
    assert events[0]["event_id"] == "00000252"
    call = {"name": RENAME["name"], "arguments": json.loads(RENAME["arguments"]) | {"new_value": " x"}}
    assert isinstance(episode.step(f"<tool_call>{json.dumps(call)}</tool_call>"), Observation)
    end = episode.step("Done.")
    assert isinstance(end, End) and end.verdict.score == 1.0


def test_tools_in_xml_take_numbers_too() -> None:
    episode = Workplace().start(parse_task(ROW, "rows:1", "0"))
    parameters = "<parameter=query>kofi</parameter><parameter=page_size>2</parameter>"
    shown = episode.step(f"<tool_call><function=email_search_emails>{parameters}</function></tool_call>")
    assert isinstance(shown, Observation)
    found = json.loads(shown.messages[0]["content"])["output"]
    assert [email["email_id"] for email in found["emails"]] == ["00000259", "00000331"]
    assert found["pagination"] == {"total_emails": 26, "page": 1, "page_size": 2, "total_pages": 13}


def test_every_part_of_a_search_counts() -> None:
    found = said(
        f"{CRM}_search_customers", status="proposal", product_interest="Consulting", last_contact_date_max="2023-11-25"
    )
    assert {(row["status"], row["product_interest"]) for row in found["customers"]} == {("Proposal", "Consulting")}
    assert max(row["last_contact_date"] for row in found["customers"]) <= "2023-11-25"
    assert said(f"{TASKS}_search_tasks", task_name="carousel", board="Design") == []
    assert said("company_directory_find_email_address", name="Nadia") == ["nadia.moreau@atlas.com"]


def test_what_was_changed_is_found_and_what_was_deleted_is_not() -> None:
    one = office()
    key = json.loads(
        one.call(f"{CRM}_add_customer", {"customer_name": "Zoe", "assigned_to_email": "A@b.c", "status": "Lead"})
    )
    assert key == {"output": "00000200"}
    found = json.loads(one.call(f"{CRM}_search_customers", {"customer_name": "zoe"}))["output"]["customers"]
    assert (found[0]["customer_id"], found[0]["assigned_to_email"], found[0]["notes"]) == ("00000200", "a@b.c", None)
    one.call(f"{CRM}_delete_customer", {"customer_id": "00000200"})
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
        ("calendar_update_event", {"event_id": "00000252", "field": "color", "new_value": "red"}, "no field color"),
        ("calendar_update_event", {"event_id": "00000252", "field": "duration", "new_value": "-5"}, "found -5"),
        (f"{TASKS}_search_tasks", {}, "something to search for"),
        (f"{TASKS}_update_task", {"task_id": "00000149", "field": "board", "new_value": "design"}, "one of Back end"),
        (
            f"{TASKS}_update_task",
            {"task_id": "00000149", "field": "assigned_to_email", "new_value": "x@y.z"},
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
