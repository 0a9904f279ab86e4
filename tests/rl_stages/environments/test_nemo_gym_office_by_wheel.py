"""NeMo-Gym's office, call for call against the tools of nemo-gym's wheel, as `make test-published` lays it out."""

import json
import math
import os
import random
from contextlib import suppress
from functools import partialmethod
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from cascade_rl.rl_stages.environments.nemo_gym_office import TOOLS
from cascade_rl.rl_stages.environments.nemo_gym_tables import FILES, VARIABLE, start
from cascade_rl.rl_stages.environments.office import Office, ToolError
from cascade_rl.rl_stages.tasks.load_tasks import parse_task

PLACE = "CASCADE_PUBLISHED"
pytestmark = pytest.mark.skipif(PLACE not in os.environ, reason=f"{PLACE} is not set: `make test-published` does it")
SERVER = "resources_servers/workplace_assistant"
AGENT = {"agent_ref": {"name": "workplace_assistant_simple_agent"}}


@pytest.fixture(autouse=True)
def _tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, os.environ[PLACE])


def office() -> Office:
    return Office(start(), TOOLS)


@pytest.fixture
def gym(monkeypatch: pytest.MonkeyPatch) -> Any:
    # mails of one time come in any order: let that be the order of the table
    monkeypatch.setattr(pd.DataFrame, "sort_values", partialmethod(pd.DataFrame.sort_values, kind="stable"))
    monkeypatch.syspath_prepend(os.environ[PLACE])
    return import_module("resources_servers.workplace_assistant.utils")


def lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (Path(os.environ[PLACE]) / SERVER / "data" / name).read_text().splitlines()]


def test_published_rows_load_and_tools_show_what_they_showed() -> None:
    assert len([parse_task(AGENT | row, "row", "0") for row in lines("example.jsonl")]) == 5
    shown = 0
    for rollout in lines("example_rollouts.jsonl"):
        one, calls = office(), {}
        for item in rollout["response"]["output"]:
            if item["type"] == "function_call":
                calls[item["call_id"]] = item
            if item["type"] == "function_call_output":
                call = calls[item["call_id"]]
                assert one.call(call["name"], json.loads(call["arguments"])) == item["output"]
                shown += 1
    assert shown == 8


WORDS = {
    "name": ("nadia", "kofi", "a", "zzz"),
    "query": ("kofi", "update prototype", "Sam", "review", "", "atlas"),
    "page": (1, 2, 99),
    "page_size": (1, 3, 50),
    "recipient": ("Nadia.Moreau@atlas.com", "new@atlas.com", "nobody"),
    "participant_email": ("Nadia.Moreau@atlas.com",),
    "subject": ("Hello", "Task"),
    "body": ("See you.", "Thanks"),
    "event_name": ("Walk", "Review"),
    "event_start": ("2023-12-01 10:00:00", "2023-12-04 09:30:00", "noon?"),
    "duration": ("30", "60", "0", "long"),
    "visitor_id": ("0860", "4426", "9"),
    "value_to_plot": ("total_visits", "user_engaged", "visits"),
    "plot_type": ("bar", "line", "pie"),
    "traffic_source": ("direct", "referral", "search engine"),
    "task_name": ("carousel", "Add", "New task", "prototype"),
    "assigned_to_email": ("leila.azizi@atlas.com", "Carlos.Rodriguez@atlas.com", "nobody@atlas.com"),
    "list_name": ("Backlog", "In Progress", "Done"),
    "board": ("Back end", "Design", "design"),
    "due_date": ("2023-11-27", "2023-12-05"),
    "customer_name": ("Taylor", "Zoe Fox", "a"),
    "customer_email": ("Zoe@fox.example",),
    "customer_phone": ("555-0100",),
    "product_interest": ("Software", "Training", "Shoes"),
    "status": ("Lead", "Won", "Lost", "lead"),
    "notes": ("Met.",),
    **dict.fromkeys(("date_min", "date_max", "time_min", "time_max"), ("2023-11-20", "2023-11-29")),
    **dict.fromkeys(("last_contact_date", "follow_up_by"), ("2023-11-20 10:00:00", "2023-12-20 10:00:00")),
}
TABLES = {key: table for table, (_, key) in FILES.items()}


def drawn(draw: random.Random, name: str) -> dict[str, Any]:
    """Arguments of one call: one in twenty lacks one."""
    tool = TOOLS[name]
    names = [*tool.required, *(option for option in tool.optional if draw.random() < 0.3)]
    if len(names) > 1 and draw.random() < 0.05:
        names.remove(draw.choice(names))
    field = draw.choice(fields_of(name))
    return {argument: drawn_value(draw, argument, field) for argument in names}


def fields_of(tool: str) -> list[str]:
    records = next((start()[table] for table in FILES if tool.startswith(table)), {"": {}})
    return [*next(iter(records.values())), "color"]


def drawn_value(draw: random.Random, argument: str, field: str) -> str | int:
    if argument in TABLES:
        return draw.choice([*start()[TABLES[argument]], "00000500", "501", "00009999"][-40:])
    if argument == "field":
        return field
    kind = field if argument == "new_value" else argument
    return draw.choice(WORDS.get(kind, WORDS.get(kind[:-4], ("new",))))


def comparable(value: Any) -> Any:
    """Nulls are alike, and so are numbers: the wheel's mean changes the type of what it was taken of."""
    if isinstance(value, dict):
        number = "session_duration_seconds"
        return {key: float(item) if key == number else comparable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [comparable(item) for item in value]
    if isinstance(value, float):
        return None if math.isnan(value) else round(value, 6)
    return None if value == "" else value


def is_refusal(answer: Any) -> bool:
    done = (
        "successfully.",
        "No emails found.",
        "No events found.",
        "No customers found.",
        "Visitor not found.",
        ".png",
    )
    return isinstance(answer, str) and not answer.endswith(done) and not answer.isdigit()


def test_calls_do_what_they_do_in_the_wheel(gym: Any) -> None:
    """Offices of thirty random calls each: what is shown, and what is refused."""
    draw, kinds = random.Random(0), {"shown": 0, "refused": 0}
    for _ in range(60):
        ours, theirs = office(), gym.get_tools(FILES.keys() | {"analytics"})
        for _ in range(30):
            name = draw.choice(list(TOOLS))
            arguments = drawn(draw, name)
            try:
                answer = comparable(theirs["functions"][name](**arguments))
            except (TypeError, ValueError) as error:
                answer = str(error)
            try:
                shown = comparable(json.loads(ours.call(name, arguments))["output"])
            except ToolError as error:
                kinds["refused"] += 1
                assert is_refusal(answer), (name, arguments, str(error), answer)
                continue
            kinds["shown"] += 1
            if str(answer).startswith("Cannot mask"):  # the wheel's search fails where a customer has no address
                continue
            assert shown == answer, (name, arguments)
    assert min(kinds.values()) > 300, kinds


def test_two_ends_are_the_same_where_they_are_in_the_wheel(gym: Any) -> None:
    """Thirty random calls against the same without one of them."""
    draw, found = random.Random(1), []
    for _ in range(40):
        names = [draw.choice(list(TOOLS)) for _ in range(30)]
        calls = [{"name": name, "arguments": json.dumps(drawn(draw, name))} for name in names]
        fewer = calls.copy()
        fewer.pop(draw.randrange(30))
        found.append(after(fewer).same_as(after(calls)))
        assert found[-1] == gym.is_correct(fewer, calls, None)
    assert 10 < sum(found) < 30


def after(calls: list[dict[str, str]]) -> Office:
    one = office()
    for call in calls:
        with suppress(ToolError):
            one.call(call["name"], json.loads(call["arguments"]))
    return one


def test_the_order_of_new_records_counts_in_the_wheel_alone(gym: Any) -> None:
    meeting = {"participant_email": "a@b.c", "event_start": "2023-12-01 10:00:00", "duration": "30"}
    walk, lunch = (
        {"name": "calendar_create_event", "arguments": json.dumps(meeting | {"event_name": name})}
        for name in ("Walk", "Lunch")
    )
    assert not gym.is_correct([walk, lunch], [lunch, walk], None)
    assert after([walk, lunch]).same_as(after([lunch, walk]))
