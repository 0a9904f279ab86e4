import json
import os
import signal
from contextlib import closing

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.rollouts import Outcome
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.rewards.verifiers.structured.strict_schema import strict_schema
from cascade_rl.rl_stages.rewards.verifiers.structured.structured_output import StructuredOutputVerifier, parse_row
from cascade_rl.rl_stages.rewards.verifiers.structured.structured_worker import reply

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "height": {"type": ["number", "null"]},
        "member": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name"],
}
NUMBER = {"type": "number", "multipleOf": 0.01}
FLAT = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
RIGHT = {"name": "Ann", "age": 3, "height": None, "member": True, "tags": ["a"]}
YAML = "name: Ann\nage: 3\nheight: null\nmember: true\ntags: [a]"
TOML = 'name = "Ann"\nage = 3\nheight = 1.5\nmember = true\ntags = ["a"]'
XML = "<person><name>Ann</name><age>3</age><height/><member>true</member><tags><tag>a</tag></tags></person>"
TOOLS = {"tools": [{"type": "function", "name": "save", "parameters": {"type": "object"}}]}
TOOL_ROW = {"response_mode": "tool_call", "tool_name": "save", "responses_create_params": TOOLS}


@pytest.fixture(scope="module")
def verifier():
    with closing(StructuredOutputVerifier(deadline_seconds=120.0)) as shared:
        yield shared


def verdict(verifier, text, kind="json", schema=PERSON, **fields):
    row = {"schema_str": json.dumps(schema), "schema_type": kind, **fields}
    return verifier(Task("t", "structured_output", (), parse_row(row)), text)


def outcome(kind, text, schema=PERSON):
    """The worker's score, in this process."""
    return reply({"kind": kind, "text": text, "schema": strict_schema(schema)})["score"]


@pytest.mark.parametrize(("kind", "text"), [("json", json.dumps(RIGHT)), ("yaml", YAML), ("toml", TOML), ("xml", XML)])
def test_a_valid_document_scores_one_in_each_format(verifier, kind, text):
    result = verdict(verifier, f"<think>[</think>{text}", kind)
    assert (result.outcome, result.score) == (Outcome.COMPLETED, 1.0)


@pytest.mark.parametrize(
    ("change", "score"),
    [
        ({"age": 3.0}, 1.0),  # JSON schema: 1.0 is an integer, true is not
        ({"age": True}, 0.0),
        ({"age": "3"}, 0.0),
        ({"height": 1e400}, None),
        ({"more": 1}, 0.0),
        ({"member": 1}, 0.0),
    ],
)
def test_types_are_those_of_json_schema_and_no_property_is_extra(change, score):
    assert outcome("json", json.dumps(RIGHT | change)) == score


def test_every_property_is_required():
    assert outcome("json", json.dumps({"name": "Ann"})) == 0.0


@pytest.mark.parametrize(
    ("kind", "text", "schema", "score"),
    [
        ("csv", "name,age\nAnn,3", FLAT, 1.0),
        ("csv", "name,age\nAnn,3", {"type": "array", "items": FLAT}, 1.0),
        ("csv", "name,age\nAnn,x", FLAT, 0.0),
        ("csv", "name,age\nAnn,1_0", FLAT, 0.0),
        ("csv", "name,age", FLAT, 0.0),
        ("csv", "name\nAnn", FLAT, 0.0),
        ("csv", "name,age\nAnn", FLAT, None),
        ("json", "[]", {"type": "array", "items": FLAT}, 0.0),
        ("json", "{}", {"type": "object"}, 0.0),
        ("xml", "<r><name>Ann</name><age>nan</age></r>", FLAT, 0.0),
        ("xml", "<r><name></name><age>3</age></r>", FLAT, 1.0),
        ("xml", "<r><name>Ann</name><age/></r>", FLAT, 0.0),
        ("xml", "<r><p><name>A</name><age>1</age></p></r>", {"type": "array", "items": FLAT}, 1.0),
        ("xml", "<p><name>A</name><age>1</age></p>", {"type": "object", "properties": {"p": FLAT}}, 1.0),
        ("json", '{"a": null}', {"properties": {"a": {"type": "string", "nullable": True}}}, 1.0),
        ("json", '{"a": null}', {"properties": {"a": {"type": "string"}}}, 0.0),
        ("json", '{"properties": "x"}', {"properties": {"properties": {"type": "string"}}}, 1.0),
        ("json", '{"a": null}', {"properties": {"a": {"enum": ["x"], "nullable": True}}}, 1.0),
        ("json", '{"d": "2024-02-30"}', {"properties": {"d": {"type": "string", "format": "date"}}}, 0.0),
        ("yaml", "d: 2024-02-29", {"properties": {"d": {"type": "string", "format": "date"}}}, 1.0),
        ("toml", "d = 1979-05-27T07:32:00Z", {"properties": {"d": {"format": "date-time"}}}, 1.0),
        ("yaml", "on: push\n404: 12:30", {"properties": {"on": {"type": "string"}, "404": {"type": "string"}}}, 1.0),
        ("csv", "id,price\n1,19.99", {"properties": {"id": {"const": 1}, "price": {"multipleOf": 0.01}}}, 1.0),
        ("csv", "id,price\n1,19.999", {"properties": {"id": {"const": 1}, "price": NUMBER}}, 0.0),
        ("csv", "name,age\nAnn,3", {"$ref": "#/$defs/all", "$defs": {"all": {"type": "array", "items": FLAT}}}, 1.0),
        ("csv", "name,age\nAnn,3", {"$ref": "#/$defs/one", "$defs": {"one": FLAT}}, 1.0),
        ("xml", "<p><name>A</name><age>1</age></p>", {"anyOf": [{"properties": {"p": FLAT}}, FLAT]}, 1.0),
        ("xml", "<name>A</name>", {"$ref": "#/$defs/o", "$defs": {"o": {"properties": {"name": {}}}}}, 1.0),
        ("xml", "<r/>", {"type": "object"}, 0.0),
        ("json", "[1e300]", {"items": {"multipleOf": 1e-300}}, 1.0),
    ],
)
def test_documents_against_schemas(kind, text, schema, score):
    assert outcome(kind, text, schema) == score


@pytest.mark.parametrize("text", ["", "<think>{", "Here: {}", '```json\n{"name": "Ann"}\n```', "[" * 100_000])
def test_what_is_no_document_is_a_wrong_format(verifier, text):
    result = verdict(verifier, text)
    assert (result.outcome, result.score) == (Outcome.WRONG_FORMAT, 0.0)


@pytest.mark.parametrize(
    ("calls", "outcome_", "score"),
    [
        (["save"], Outcome.COMPLETED, 1.0),
        (["load"], Outcome.WRONG_FORMAT, 0.0),
        (["save", "save"], Outcome.WRONG_FORMAT, 0.0),
        ([], Outcome.WRONG_FORMAT, 0.0),
    ],
)
def test_a_payload_comes_from_exactly_one_call_of_the_tool(verifier, calls, outcome_, score):
    body = {"arguments": {"data": {"name": "Ann", "age": 3}}}
    text = "".join(f"<tool_call>{json.dumps({'name': name} | body)}</tool_call>" for name in calls)
    result = verdict(verifier, text or "no", schema=FLAT, tool_payload_key="data", **TOOL_ROW)
    assert (result.outcome, result.score) == (outcome_, score)
    assert verdict(verifier, text or "no", schema=FLAT, tool_payload_key="other", **TOOL_ROW).score == 0.0


def test_a_validation_that_hangs_scores_zero_at_the_deadline_and_a_dead_worker_is_replaced():
    slow = {"type": "object", "properties": {"name": {"type": "string", "pattern": "^(a|a)*$"}}}
    with closing(StructuredOutputVerifier(deadline_seconds=120.0)) as verifier:
        assert verdict(verifier, '{"name": "a"}', schema=slow).score == 1.0
        verifier._check._deadline = 1.0
        result = verdict(verifier, json.dumps({"name": "a" * 40 + "b"}), schema=slow)
        assert result.score in (0.0, None)  # None where others kept it from its processor
        assert result.detail.startswith("undecided after 1 s")
        verifier._check._deadline = 120.0
        assert verdict(verifier, '{"name": "a"}', schema=slow).score == 1.0
        os.kill(verifier._check.worker.pid, signal.SIGKILL)
        assert verdict(verifier, '{"name": "a"}', schema=slow).score == 1.0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"schema_type": "ini"}, "'schema_type' to be one of json, yaml, xml, toml, csv; found 'ini'"),
        ({"schema_str": None}, "'schema_str' to be the text of a JSON schema"),
        ({"schema_str": "{"}, "'schema_str' to be the text of a JSON schema"),
        ({"schema_str": "3"}, "'schema_str' to be the text of a JSON schema"),
        ({"schema_str": '{"type": "text"}'}, "at \\$.type found 'text'"),
        ({"schema_str": '{"$ref": "http://x/y"}'}, "without references to other documents; found 'http://x/y'"),
        ({"schema_str": '{"$ref": "#/$defs/a"}'}, "or to nothing; found '#/\\$defs/a'"),
        ({"schema_str": '{"items": {"anyOf": 3}}'}, "at \\$.items.anyOf found 3"),
        ({"response_mode": "image"}, "'response_mode' to be text or tool_call; found 'image'"),
        (TOOL_ROW | {"tool_name": "load"}, r"'tool_name' to be one of \['save'\]; found 'load'"),
        (TOOL_ROW | {"responses_create_params": {"tools": [3]}}, "'responses_create_params.tools' to be"),
    ],
)
def test_bad_rows_are_refused(fields, message):
    with pytest.raises(UserError, match=message):
        parse_row({"schema_str": '{"type": "object"}', "schema_type": "json"} | fields)


def test_a_broken_required_list_is_repaired_by_strictness():
    row = {"schema_str": json.dumps(FLAT | {"required": {"item": ["name"]}, "additionalProperties": "false"})}
    assert parse_row(row)["schema"]["required"] == ["name", "age"]


@pytest.mark.parametrize(
    ("schema", "document"),
    [
        ({"properties": {"code": {"pattern": r"^\d+$"}}}, '{"code": "\u0663"}'),
        ({"properties": {"code": {"pattern": "^a$"}}}, r'{"code": "a\n"}'),
        ({"patternProperties": {r"^\d+$": True}, "unevaluatedProperties": False}, '{"\u0663": 1}'),
    ],
)
def test_expressions_are_those_of_ecma_262(schema, document):
    assert outcome("json", document, schema) == 0
