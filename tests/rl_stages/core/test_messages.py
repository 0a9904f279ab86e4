"""Chat messages and NeMo-Gym's items become one form; what is not a message is refused with its place."""

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.core.messages import parse_messages, parse_tools

USER = {"role": "user", "content": "Pay Ann."}
CALL = {"type": "function_call", "call_id": "a", "name": "pay", "arguments": '{"to": "Ann"}'}
OUTPUT = {"type": "function_call_output", "call_id": "a", "output": "done"}
PARSED_CALL = {"type": "function", "function": {"name": "pay", "arguments": {"to": "Ann"}}, "id": "a"}
REASONING = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "I pay."}]}


def test_history_items_become_turns() -> None:
    said = {"role": "assistant", "content": [{"type": "output_text", "text": "Paid."}], "type": "message"}
    assert parse_messages([USER, REASONING, CALL, OUTPUT, said, USER], "row") == (
        USER,
        {"role": "assistant", "content": "", "reasoning_content": "I pay.", "tool_calls": [PARSED_CALL]},
        {"role": "tool", "content": "done", "tool_call_id": "a"},
        {"role": "assistant", "content": "Paid."},
        USER,
    )


def test_reasoning_and_the_message_behind_it_are_one_turn() -> None:
    _, turn = parse_messages([USER, REASONING, {"role": "assistant", "content": "Paid."}], "row")
    assert turn == {"role": "assistant", "content": "Paid.", "reasoning_content": "I pay."}


def test_calls_side_by_side_are_one_turn_and_a_call_after_an_output_is_another() -> None:
    second = CALL | {"call_id": "b"}
    turns = parse_messages([USER, CALL, second, OUTPUT, OUTPUT | {"call_id": "b"}, CALL | {"call_id": "c"}], "row")
    assert [turn["role"] for turn in turns] == ["user", "assistant", "tool", "tool", "assistant"]
    assert [len(turn.get("tool_calls", ())) for turn in turns] == [0, 2, 0, 0, 1]


def test_chat_messages_keep_their_calls_and_reasoning() -> None:
    nested = {"id": "a", "type": "function", "function": {"name": "pay", "arguments": {"to": "Ann"}}}
    called = {"role": "assistant", "content": None, "reasoning_content": "I pay.", "tool_calls": [nested]}
    output = {"role": "tool", "tool_call_id": "a", "content": "done"}
    inline = {"role": "assistant", "content": "<think>\nIt is done.\n</think>\n\nPaid."}
    _, turn, result, last = parse_messages([USER, called, output, inline], "row")
    assert turn == {"role": "assistant", "content": "", "reasoning_content": "I pay.", "tool_calls": [PARSED_CALL]}
    assert result == {"role": "tool", "content": "done", "tool_call_id": "a"}
    assert last == {"role": "assistant", "content": "Paid.", "reasoning_content": "It is done."}


def test_a_text_is_one_user_turn_and_a_developer_speaks_as_the_system() -> None:
    assert parse_messages("hi", "row") == ({"role": "user", "content": "hi"},)
    assert parse_messages([USER | {"role": "developer"}, USER], "row")[0]["role"] == "system"


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([], "row: expected a non-empty list of messages; found []"),
        (None, "row: expected a non-empty list"),
        ([USER, 3], "row[1]: expected {\"role\": one of system, developer, user, assistant, tool"),
        ([USER | {"role": "human"}], "row[0]: expected {\"role\""),
        ([USER | {"role": ["user"]}], "row[0]: expected {\"role\""),
        ([USER | {"content": None}], "row[0]: expected 'content' to be text or a list of text parts; found None"),
        ([USER | {"content": [{"type": "input_image"}]}], "row[0]: expected 'content' to be text"),
        ([USER | {"type": "web_search_call"}], "row[0]: expected an item whose 'type' is one of message, reasoning"),
        ([USER, OUTPUT], "row[1]: expected the output of an earlier call; found id 'a', which no earlier call has"),
        ([USER, CALL | {"arguments": "{"}], "row[1]: expected the 'arguments' of pay to be a JSON object; found '{'"),
        ([USER, CALL | {"name": None}], "row[1]: expected a call's 'name' to be text"),
        ([USER, CALL | {"call_id": 1}], "row[1]: expected the id of a call to be text; found 1"),
        ([USER, REASONING, USER], "row: expected an answer or a call in each assistant turn"),
        ([USER, {"role": "assistant", "content": "<think> so"}], "row[1]: expected reasoning to end with </think>"),
        ([{"role": "assistant", "content": "hi"}, USER], "row: expected the first turn to be the system's or"),
    ],
)  # fmt: skip
def test_what_is_no_message_is_refused_with_its_place(items: object, message: str) -> None:
    with pytest.raises(UserError) as error:
        parse_messages(items, "row")
    assert str(error.value).startswith(message)


def test_tools_flat_and_nested_are_one_form() -> None:
    function = {"name": "pay", "parameters": {"type": "object"}}
    nested = {"type": "function", "function": function}
    for unset in ({}, {"strict": None}):
        assert parse_tools([{"type": "function", **unset, **function}], "tools") == (nested,)
    assert parse_tools([nested], "tools") == (nested,)
    (kept,) = parse_tools([{"type": "function", "strict": False, **function}], "tools")
    assert kept["function"]["strict"] is False
    for bad in ({}, [{}], [{"name": 3}], [{"name": "pay", "parameters": {"properties": []}}]):
        with pytest.raises(UserError, match="expected 'tools' to be a list of"):
            parse_tools(bad, "tools")
