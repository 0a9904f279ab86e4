import json
import time
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.rollouts import Outcome
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.rewards.verifiers.structured.arguments import same_value, similar_text
from cascade_rl.rl_stages.rewards.verifiers.structured.documents import Malformed
from cascade_rl.rl_stages.rewards.verifiers.structured.tool_call import ToolCallVerifier, matched, parse_row
from cascade_rl.rl_stages.rewards.verifiers.structured.tool_text import ToolCall, split_calls

PARAMETERS = {
    "$defs": {"unit": {"enum": ["EUR", "USD"]}},
    "properties": {
        "to": {"type": "string"},
        "amount": {"type": "number"},
        "tags": {"type": "array"},
        "unit": {"$ref": "#/$defs/unit"},
        "ref": {"type": ["string", "integer"]},
        "more": {},
        "days": {"type": "integer", "default": 7},
        "note": {"type": ["string", "null"], "default": None},
    },
}
TOOLS = {"tools": [{"type": "function", "name": name, "parameters": PARAMETERS} for name in ("pay", "note")]}
LOOSE = {"word_count_similarity_threshold": 0.3}
SIMILAR = {"argument_comparison_overrides": {"note": {"to": LOOSE}}}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


def call(name, **arguments):
    return {"type": "function_call", "name": name, "arguments": json.dumps(arguments)}


def said(name, **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def shown(name, **texts):
    """A call in the XML form."""
    parameters = "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in texts.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def verdict(expected, text, **fields):
    row = {"expected_action": expected, "responses_create_params": TOOLS} | fields
    return ToolCallVerifier()(Task("t", "tool_call", (), parse_row(row)), text)


ANN = call("pay", to="Ann", amount=3)
BATCH = {"type": "function_call_batch", "calls": [ANN, call("pay", to="Bob", amount=3)]}
MESSAGE = {"type": "message", "content": "Which account?"}
XML = """<tool_call>
<function=pay>
<parameter=to>
Ann
</parameter>
<parameter=amount>
3.0
</parameter>
</function>
</tool_call>"""


@pytest.mark.parametrize(
    ("expected", "text"),
    [
        (ANN, said("pay", amount=3, to="Ann")),
        (ANN, said("pay", amount=3.0000001, to="Ann")),
        (ANN, "I pay.\n" + said("pay", to="Ann", amount=3)),
        (ANN, "<think>" + said("pay") + "</think>" + said("pay", to="Ann", amount=3)),
        (ANN, '<tool_call>{"name": "pay", "arguments": "{\\"to\\": \\"Ann\\", \\"amount\\": 3}"}</tool_call>'),
        (ANN, XML),
        (BATCH, said("pay", to="Bob", amount=3) + said("pay", to="Ann", amount=3)),
        (MESSAGE, "Which one?"),
        (ANN, said("pay", to="ann ", amount=3)),
        (call("note", to="ls -la"), said("note", to="ls -la")),
        (call("pay", unit="EUR"), said("pay", unit="EUR")),
        (call("note", ref="5"), shown("note", ref="5")),
        (call("note", ref=5), shown("note", ref="5")),
        (call("note", more="true"), shown("note", more="true")),
        (call("note", more=True), shown("note", more="true")),
        (call("note", more=None), shown("note", more="None")),
        (call("note", more={"a": "5"}), shown("note", more='{"a": "5"}')),
        (call("note"), said("note")),
        (call("note"), said("note", days=7)),
        (call("note", days=7, note=None), said("note")),
        (call("note", note="a"), said("note", note="a", days=7.0)),
        (call("note", to="a"), shown("note", to="a", days="7", note="None")),
        (call("note", to="caf\u00e9 \U0001f600"), said("note", to="caf\u00e9 \U0001f600")),
        (call("note", more={"a": {"b": [1, {"c": None}]}}), said("note", more={"a": {"b": [1.0, {"c": None}]}})),
    ],
)
def test_the_expected_action_scores_one(expected, text):
    result = verdict(expected, text)
    assert (result.outcome, result.score) == (Outcome.COMPLETED, 1.0)


@pytest.mark.parametrize(
    ("expected", "text"),
    [
        (ANN, "I pay Ann."),
        (ANN, said("note", to="Ann", amount=3)),
        (call("note", to="Pay Ann for the red shoes"), said("note", to="pay ann for the shoes")),
        (call("note", to="do not pay"), said("note", to="do pay")),
        (call("note", to="x < y"), said("note", to="x > y")),
        (call("note", to="Ann", more="Bob"), said("note", to="Bob", more="Ann")),
        (call("note", more=["a", "b"]), said("note", more=["b", "a"])),
        (call("note", more={"a": {"b": "rm x"}}), said("note", more={"a": {"b": "rm y"}})),
        (call("note", to="Ann", more=None), said("note", to="Ann")),
        (call("pay", unit="EUR"), said("pay", unit="eur")),  # no value of the enumeration
        (call("note"), said("note", days=8)),
        (call("note", days=3), said("note")),
        (call("note", note="a"), said("note")),
        (call("note", more={"a": None}), said("note", more={})),
        (call("note", ref="5"), said("note", ref=5)),
        (call("note", ref=5), said("note", ref="5")),
        (call("note", ref="5"), shown("note", ref="6")),
        (ANN, said("pay", to="Ann", amount="3")),
        (ANN, said("pay", to="Ann", amount=True)),
        (ANN, said("pay", to="Ann")),
        (ANN, said("pay", to="Ann", amount=3, tags=[])),
        (ANN, said("pay", to="Ann", amount=3) + said("note")),  # surplus calls are not free
        (ANN, said("pay", to="Ann", amount=3) * 2),
        (BATCH, said("pay", to="Ann", amount=3)),
        (BATCH, said("pay", to="Ann", amount=3) * 2),
        (MESSAGE, said("pay", to="Ann", amount=3)),
        (MESSAGE, "Which one? " + said("note")),
    ],
)
def test_another_action_scores_zero(expected, text):
    result = verdict(expected, text)
    assert (result.outcome, result.score) == (Outcome.COMPLETED, 0.0)


@pytest.mark.parametrize(
    ("expected", "text", "score"),
    [
        (call("note", to="Pay Ann for the red shoes"), said("note", to="for the shoes pay ann"), 1.0),
        (call("note", to=["Pay Ann for the shoes"]), said("note", to=["Pay Ann for all the shoes"]), 1.0),
        (call("note", to="Pay Ann 30 for the shoes"), said("note", to="Pay Ann 90 for the shoes"), 0.0),
        (call("note", to="Pay Ann for the shoes"), said("note", to="Do not pay Ann for the shoes"), 0.0),
        (call("note", to="Pay Ann"), said("note", to="Pay Ann " + "a b c d e f g " * 9), 0.0),
        (call("note", more="Pay Ann for the red shoes"), said("note", more="pay Ann for the shoes"), 0.0),
        (call("pay", to="Pay Ann for the red shoes"), said("pay", to="pay Ann for the shoes"), 0.0),
    ],
)
def test_a_row_may_say_that_an_argument_is_free_text(expected, text, score):
    assert verdict(expected, text, **SIMILAR).score == score


@pytest.mark.parametrize(
    "piece",
    [
        "<tool_call>",
        "</tool_call>",
        "<tool_call></tool_call>",
        "<function=",
        "<parameter=to>",
        "<parameter=to>\n</parameter>",
    ],
)
@pytest.mark.parametrize(("before", "after"), [("", ""), ("<tool_call><function=note>", "</function></tool_call>")])
def test_repeated_tags_take_linear_time(piece, before, after):
    text, started = before + piece * (200_000 // len(piece)) + after, time.process_time()
    assert verdict(ANN, text).score == 0.0
    assert time.process_time() - started < 2.0


@pytest.mark.parametrize("piece", ["a-", "a'", "A", "a ", "aA", "\u0301", "\u0301\u0316", "a\u0301A"])
def test_repeated_pieces_of_an_argument_take_linear_time(piece):
    text, started = said("note", to=piece * (180_000 // len(piece) // 6)), time.process_time()
    assert verdict(call("note", to="Pay Ann for the shoes"), text, **SIMILAR).score == 0.0
    assert time.process_time() - started < 2.0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<think>" + said("pay", to="Ann", amount=3),
        "<tool_call>{",
        "</tool_call>",
        "<tool_call>pay</tool_call>",
        "<tool_call>[]</tool_call>",
        '<tool_call>{"name": "pay", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "pay", "name": "note", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "pay", "arguments": {"amount": NaN}}</tool_call>',
        "<tool_call>" + "[" * 100_000 + "</tool_call>",
        XML.replace("</function>", ""),
        XML.replace("amount", "to"),
        XML.replace("<parameter=amount>", "<parameter=amount>\n3</parameter>x<parameter=tags>"),
    ],
)
def test_calls_that_do_not_parse_are_a_wrong_format(text):
    result = verdict(ANN, text)
    assert (result.outcome, result.score) == (Outcome.WRONG_FORMAT, 0.0)


def test_values_of_the_xml_form_are_text_where_the_schema_says_so():
    body = "<parameter=to>3</parameter><parameter=amount>3</parameter><parameter=tags>[1]</parameter>"
    _, calls = split_calls(f"<tool_call><function=pay>{body}</function></tool_call>", {"pay": PARAMETERS})
    assert calls == [ToolCall("pay", {"to": "3", "amount": 3, "tags": [1]})]
    with pytest.raises(Malformed):
        split_calls("<tool_call><function=pay></tool_call>", {})


@pytest.mark.parametrize(
    ("schema", "shown", "value"),
    [
        ({"type": "boolean"}, "True", True),
        ({"type": "boolean"}, "false", False),
        ({"type": "object"}, "None", None),
        ({"type": "string"}, "None", "None"),
        ({"type": ["string", "null"]}, "5", "5"),
        ({"type": ["string", "null"]}, "None", None),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "true", "true"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "5", 5),
        ({"oneOf": [{"type": "string"}, {"type": "null"}]}, "5", "5"),
        ({"type": "string", "nullable": True}, "5", "5"),
        ({"type": "string", "nullable": True}, "None", None),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"allOf": [{"type": "string"}, {"minLength": 1}]}, "true", "true"),
        ({"$ref": "#/$defs/unit"}, "5", "5"),
        (True, "5", 5),
    ],
)
def test_a_value_is_read_as_the_templates_show_it(schema, shown, value):
    """Nemotron-3's template shows booleans and null in Python's words."""
    text = f"<tool_call>\n<function=f>\n<parameter=x>\n{shown}\n</parameter>\n</function>\n</tool_call>"
    _, calls = split_calls(text, {"f": PARAMETERS | {"properties": {"x": schema}}})
    assert calls == [ToolCall("f", {"x": value})]
    assert type(calls[0].arguments["x"]) is type(value)


def test_matching_moves_a_partner_that_another_call_needs():
    close, far = ToolCall("note", {"to": "a b c d e"}), ToolCall("note", {"to": "a b v x y"})
    either = ToolCall("note", {"to": "a b c d x"})
    rules = {"note": {"to": partial(similar_text, threshold=0.3)}}
    assert matched([either, close], [close, far], rules) == matched([close, either], [far, close], rules) == 2


@given(VALUES)
def test_every_value_is_the_same_as_itself(value):
    assert same_value(json.loads(json.dumps(value)), value)


@given(VALUES, VALUES)
def test_sameness_goes_both_ways(left, right):
    assert same_value(left, right) == same_value(right, left)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"expected_action": None}, "to have a 'type' among"),
        ({"expected_action": {"type": "image"}}, "to have a 'type' among"),
        ({"expected_action": {"type": "function_call_batch", "calls": []}}, "non-empty list"),
        ({"expected_action": call("load")}, r"one of the row's tools \['note', 'pay'\]"),
        ({"expected_action": {"type": "function_call", "name": "pay", "arguments": "[]"}}, "a JSON object; found"),
        ({"expected_action": {"type": "function_call", "name": "pay", "arguments": "{"}}, "a JSON object; found"),
        ({"responses_create_params": {"tools": [{}]}}, "'responses_create_params.tools' to be a list of"),
        ({"responses_create_params": {"tools": [{"name": "pay", "parameters": [1]}]}}, "tools' to be a list of"),
        ({"argument_comparison_overrides": [1]}, "to be {TOOL: {ARGUMENT: "),
        ({"argument_comparison_overrides": {"pay": {"to": {}}}}, "to be {TOOL: {ARGUMENT: "),
        ({"argument_comparison_overrides": {"pay": {"to": {"word_count_similarity_threshold": 1}}}}, "at most 0.5"),
        ({"argument_comparison_overrides": {"pay": {"from": LOOSE}}}, "to name arguments of tools; found pay.from"),
    ],
)
def test_bad_rows_are_refused(fields, message):
    with pytest.raises(UserError, match=message):
        parse_row({"expected_action": ANN, "responses_create_params": TOOLS} | fields)
