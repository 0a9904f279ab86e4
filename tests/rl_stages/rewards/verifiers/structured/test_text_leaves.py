import json
from xml.sax.saxutils import escape

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cascade_rl.rl_stages.rewards.verifiers.structured.documents import parse_document
from cascade_rl.rl_stages.rewards.verifiers.structured.strict_schema import strict_schema
from cascade_rl.rl_stages.rewards.verifiers.structured.structured_worker import reply
from cascade_rl.rl_stages.rewards.verifiers.structured.text_leaves import TextLeaves

INTEGER, TEXT, NULL = {"type": "integer"}, {"type": "string"}, {"type": "null"}
DEFINED = {"$defs": {"n": INTEGER, "u": {"enum": [1, "1x", None]}}}
TAGGED = {
    "oneOf": [
        {"properties": {"kind": {"const": "a"}, "v": INTEGER}},
        {"properties": {"kind": {"const": "b"}, "v": TEXT}},
        {"properties": {"kind": {"const": "c"}, "v": {"type": "array", "items": {"type": "number"}}}},
    ]
}


def typed(text, schema, kind="xml"):
    return TextLeaves(kind, strict_schema(schema | DEFINED)).typed(text)


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("3", INTEGER, 3),
        ("3", {"type": ["null", "integer"]}, 3),
        ("", {"type": ["null", "integer"]}, None),
        ("3", {"$ref": "#/$defs/n"}, 3),
        ("3", {"anyOf": [INTEGER, NULL]}, 3),
        ("", {"anyOf": [INTEGER, NULL]}, None),
        ("3", {"oneOf": [NULL, INTEGER]}, 3),
        ("3", {"allOf": [INTEGER, {"minimum": 1}]}, 3),
        ("3", {"const": 3}, 3),
        ("3", {"const": "3"}, "3"),
        ("1", {"$ref": "#/$defs/u"}, 1),
        ("1x", {"$ref": "#/$defs/u"}, "1x"),
        ("", {"$ref": "#/$defs/u"}, None),
        ("3", {"type": "integer", "nullable": True, "minimum": 1}, 3),
        ("", {"$ref": "#/$defs/n", "nullable": True}, None),
        ("TRUE", {"type": "boolean"}, True),
        ("1", {"anyOf": [{"type": "boolean"}, NULL]}, True),
        ("1", {"enum": [True]}, True),
        ("12", TEXT, "12"),
        ("12", {"type": "string", "nullable": True}, "12"),
        ("12", {"anyOf": [{"type": "string", "pattern": "^[a-z]"}, INTEGER]}, 12),
        ("12", {"if": {"type": "string"}, "then": False}, 12),
        ("2.50", {"type": "number"}, 2.5),
        ("inf", {"type": "number"}, "inf"),
        ("1_000", INTEGER, "1_000"),
        ("x", INTEGER, "x"),
    ],
)
@pytest.mark.parametrize("kind", ["xml", "csv"])
def test_a_leaf_is_read_as_its_schema_asks(text, schema, value, kind):
    read = typed(text, schema, kind)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("<r><kind>a</kind><v>5</v></r>", TAGGED, {"kind": "a", "v": 5}),
        ("<r><kind>b</kind><v>5</v></r>", TAGGED, {"kind": "b", "v": "5"}),
        ("<r><kind>c</kind><v><i>5</i><i>6</i></v></r>", TAGGED, {"kind": "c", "v": [5.0, 6.0]}),
        ("<r><kind>c</kind><v>5</v></r>", TAGGED, {"kind": "c", "v": [5.0]}),
        ("<r><v><i>5</i></v></r>", {"properties": {"v": {"prefixItems": [INTEGER], "items": TEXT}}}, {"v": [5]}),
        ("<r><v><i>5</i><i>5</i></v></r>", {"properties": {"v": {"prefixItems": [INTEGER]}}}, {"v": [5, "5"]}),
        ("<r><v><a>5</a></v></r>", {"properties": {"v": {"items": {"properties": {"a": INTEGER}}}}}, {"v": [{"a": 5}]}),
        ("<r><v/></r>", {"properties": {"v": {"anyOf": [{"type": "array", "items": INTEGER}]}}}, {"v": []}),
        ("<r><x1>5</x1></r>", {"patternProperties": {"^x": INTEGER}}, {"x1": 5}),
        ("<r><any>5</any></r>", {"additionalProperties": {"$ref": "#/$defs/n"}}, {"any": 5}),
        (
            "<r><a>5</a><b>5</b></r>",
            {"allOf": [{"properties": {"a": INTEGER}}, {"properties": {"b": TEXT}}]},
            {"a": 5, "b": "5"},
        ),
    ],
)
def test_elements_are_read_by_the_branch_that_they_meet(text, schema, value):
    assert typed(parse_document("xml", text)["r"], schema) == value


@pytest.mark.parametrize(
    ("cell", "schema", "value"),
    [
        ('["a", "b"]', {"type": "array", "items": TEXT}, ["a", "b"]),
        ('{"x": 1}', {"properties": {"x": INTEGER}}, {"x": 1}),
        ('["a"]', TEXT, '["a"]'),
        ("a; b", {"type": "array", "items": TEXT}, "a; b"),
        ('["a"', {"type": "array", "items": TEXT}, '["a"'),
        ('["a"]', {"type": "array", "items": TEXT, "nullable": True}, ["a"]),
    ],
)
def test_a_list_in_a_cell_is_json(cell, schema, value):
    assert typed([{"c": cell}], {"type": "array", "items": {"properties": {"c": schema}}}, "csv") == [{"c": value}]


def test_alternatives_of_alternatives_are_read_in_time():
    """Both recursive branches have the same keys, so that only the whole value says which one it is."""
    branches = [{"properties": {"op": {"const": op}, "l": {"$ref": "#"}, "r": {"$ref": "#"}}} for op in "+*"]
    schema = {"anyOf": [*branches, INTEGER]}
    text = "<r><op>+</op><l>1</l>" * 12 + "<r>2</r>" + "</r>" * 12
    text = f"<x>{text.removeprefix('<r>').removesuffix('</r>')}</x>"
    assert reply({"kind": "xml", "text": text, "schema": strict_schema(schema)})["score"] == 1.0


LEAVES = st.sampled_from(
    [
        (INTEGER, 7),
        (INTEGER | {"nullable": True}, None),
        (TEXT, "7"),
        ({"anyOf": [{"type": "boolean"}, NULL]}, False),
        ({"enum": [3, "4"]}, 3),
        ({"enum": [3, "4"]}, "4"),
        ({"$ref": "#/$defs/n"}, 8),
        ({"type": "number"}, 2.5),
    ]
)


def _object(pairs):
    return {"properties": {name: s for name, (s, _) in pairs.items()}}, {name: v for name, (_, v) in pairs.items()}


def _list(pair):
    return {"type": "array", "items": pair[0]}, [pair[1]] * 2


def objects(inner):
    return st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3).map(_object)


PAIRS = objects(st.recursive(LEAVES, lambda inner: objects(inner) | inner.map(_list), max_leaves=6))


def written(value):
    """`value` as the content of an XML element."""
    if isinstance(value, dict):
        return "".join(f"<{name}>{written(each)}</{name}>" for name, each in value.items())
    if isinstance(value, list):
        return "".join(f"<item>{written(each)}</item>" for each in value)
    return "" if value is None else escape(value if isinstance(value, str) else json.dumps(value))


@given(PAIRS)
@settings(max_examples=60, deadline=None)
def test_a_right_document_written_as_xml_scores_one(pair):
    schema, value = pair
    request = {"kind": "xml", "text": f"<root>{written(value)}</root>", "schema": strict_schema(schema | DEFINED)}
    assert reply(request) == {"score": 1.0, "detail": "valid"}
