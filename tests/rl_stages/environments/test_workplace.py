"""The office: its tools, when two offices are the same, which rows are refused, and what an episode is worth."""

import json
import random
from typing import Any

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.rollouts import Outcome
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.core.verdict import Verdict
from cascade_rl.rl_stages.environments.environment import End, Observation
from cascade_rl.rl_stages.environments.office import Office, Tables, ToolError
from cascade_rl.rl_stages.environments.small_office import FIELDS, TOOLS
from cascade_rl.rl_stages.environments.workplace import Workplace, parse_row

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

REPLY = {"name": "email_reply_email", "arguments": '{"email_id": "email-1", "body": "Three of each."}'}
MEETING = {"event_name": "Lunch", "participant_email": "ann@office.example", "event_start": "noon", "duration": "30"}


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def play(truth: list[dict[str, Any]], *turns: str) -> tuple[list[str], Verdict | None]:
    """What the tools show, and the verdict if the last turn is the end."""
    episode = Workplace().start(Task("w", "workplace", (), parse_row({"ground_truth": truth, "initial_state": START})))
    shown: list[str] = []
    for turn in turns:
        answer = episode.step(turn)
        if isinstance(answer, End):
            return shown, answer.verdict
        assert isinstance(answer, Observation)
        shown += [message["content"] for message in answer.messages]
    return shown, None


def score(truth: list[dict[str, Any]], *turns: str) -> float | None:
    _, verdict = play(truth, *turns, "Done.")
    assert verdict is not None
    return verdict.score


def test_the_state_counts_and_not_the_way_to_it() -> None:
    lookup = call("email_search_emails", query="books")
    reply = call("email_reply_email", email_id="email-1", body=" three of  EACH. ")
    mistake = call("calendar_create_event", **MEETING)
    undone = call("calendar_delete_event", event_id="calendar-3")
    assert score([REPLY], reply) == 1
    assert score([REPLY], lookup, reply) == 1
    assert score([REPLY], f"{mistake}{undone}", reply) == 1
    sent = call(
        "email_send_email", recipient="tom@office.example", subject="RE: Books for the new team", body="Three of each."
    )
    assert score([REPLY], sent) == 1


def test_another_state_scores_nothing() -> None:
    reply = call("email_reply_email", email_id="email-1", body="Three of each.")
    assert score([REPLY]) == 0
    assert score([REPLY], call("email_reply_email", email_id="email-2", body="Three of each.")) == 0
    assert score([REPLY], reply, reply) == 0
    assert score([REPLY], reply, call("email_delete_email", email_id="email-3")) == 0
    assert score([], call("email_delete_email", email_id="email-3")) == 0


def test_order_and_ids_of_new_records_do_not_count() -> None:
    lunch = {"name": "calendar_create_event", "arguments": MEETING}
    walk = {"name": "calendar_create_event", "arguments": {**MEETING, "event_name": "Walk"}}
    assert (
        score(
            [lunch, walk],
            call(**{"name": "calendar_create_event", **walk["arguments"]}),
            call("calendar_create_event", **MEETING),
        )
        == 1
    )
    assert score([lunch, walk], call("calendar_create_event", **MEETING)) == 0
    assert score([lunch, walk], call("calendar_create_event", **MEETING) * 2) == 0


def test_what_the_model_does_wrong_is_told_to_it() -> None:
    shown, _ = play(
        [REPLY],
        call("email_burn"),
        call("email_delete_email"),
        call("email_delete_email", email_id="email-9"),
        call("email_delete_email", email_id=True),
        call("email_delete_email", email_id="email-1", really="yes"),
        call("calendar_update_event", event_id="calendar-1", field="color", new_value="red"),
        "<tool_call>{</tool_call>",
        call("email_get_email_information_by_id", email_id="email-2", field="subject"),
    )
    assert all(text.startswith("error: ") for text in shown[:-1])
    assert shown[-1] == "Lunch on Friday"


def test_what_has_no_token_ids_is_not_shown() -> None:
    shown, _ = play([REPLY], call("email_search_emails", query="\ud800"), call("email_burn\ud800"))
    assert shown == ["{}", "error: there is no tool email_burn?"]


def test_calls_inside_unfinished_reasoning_are_not_made() -> None:
    _, verdict = play([REPLY], f"<think>{call('email_delete_email', email_id='email-1')}")
    assert verdict is not None
    assert (verdict.outcome, verdict.score) == (Outcome.WRONG_FORMAT, 0.0)


def test_each_sample_has_an_office_of_its_own() -> None:
    for _ in range(2):
        assert score([REPLY], call("email_reply_email", email_id="email-1", body="Three of each.")) == 1
    with pytest.raises(ToolError):
        Office(START, TOOLS).get("email", "email-4")


def test_a_row_may_bring_its_office(own_office: None) -> None:
    state = {"email": {"email-7": {"box": "inbox", "address": "a@b.example", "subject": "Hi", "body": "Hello"}}}
    row = {"ground_truth": [{"name": "email_delete_email", "arguments": {"email_id": "email-7"}}]}
    assert parse_row({**row, "initial_state": state})["start"] == state
    with pytest.raises(UserError, match="there is no email record email-7"):
        parse_row(row)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "'ground_truth' to be a list"),
        ({"ground_truth": [{"name": "email_delete_email"}]}, "to hold"),
        ({"ground_truth": [{"name": "email_delete_email", "arguments": "{"}]}, "to hold"),
        ({"ground_truth": [{"name": "no_tool", "arguments": {}}]}, "there is no tool no_tool"),
        ({"ground_truth": [{"name": "email_search_emails", "arguments": {"query": "a"}}]}, "doing nothing would pass"),
        ({"ground_truth": [REPLY], "initial_state": {"desk": {}}}, "'initial_state'"),
        ({"ground_truth": [REPLY], "initial_state": {"email": {"email-1": {"subject": "Hi"}}}}, "initial_state.email"),
        ({"ground_truth": [], "initial_state": {"email": {"email-" + "9" * 5000: {}}}}, "initial_state.email"),
    ],
)
def test_a_malformed_row_is_refused(own_office: None, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_row(fields)


def test_a_mutated_row_is_a_task_or_a_user_error() -> None:
    draw = random.Random(0)
    row = {
        "ground_truth": [REPLY, {"name": "calendar_create_event", "arguments": MEETING}],
        "initial_state": dict(START),
    }
    text, refused = json.dumps(row), 0
    for _ in range(400):
        at, count = draw.randrange(len(text)), draw.randrange(6)
        junk = draw.choice(["null", "[", "{}", "1e999", '"', "-1", "true", "\\ud800", "email", ""])
        try:
            parse_row(json.loads(text[:at] + junk + text[at + count :]))
        except UserError:
            refused += 1
        except ValueError:  # no JSON: the reader of rows refuses it
            pass
    assert refused > 5
