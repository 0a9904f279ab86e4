import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.rewards.verifiers.structured.schema_validator import schema_validator
from cascade_rl.rl_stages.rewards.verifiers.structured.strict_schema import strict_schema

INTEGER, TEXT, NULL = {"type": "integer"}, {"type": "string"}, {"type": "null"}


def record(**properties):
    return {"type": "object", "properties": properties}


def kind(name, **more):
    return record(kind={"const": name}, **more)


X, Y, XY = record(x=INTEGER), record(y=TEXT), record(x=INTEGER, y=TEXT)
SHAPES = {"oneOf": [kind("a", x=INTEGER), kind("b", y=TEXT)]}
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {"node": record(value=INTEGER, children={"type": "array", "items": {"$ref": "#/$defs/node"}})},
}
CHAIN = {"$ref": "#/$defs/node", "$defs": {"node": record(value=INTEGER, next={"$ref": "#/$defs/node"})}}
ENDED = {
    "$ref": "#/$defs/node",
    "$defs": {"node": record(value=INTEGER, next={"anyOf": [{"$ref": "#/$defs/node"}, NULL]})},
}
BASE = {"$defs": {"base": XY, "shapes": SHAPES, "x": X}}
CONTACT = record(id=INTEGER, mail=TEXT, phone=TEXT) | {"oneOf": [{"required": ["mail"]}, {"required": ["phone"]}]}
BY_KIND = record(kind=TEXT) | {"if": record(kind={"const": "a"}), "then": X, "else": Y}


def meets(schema, value):
    return schema_validator(strict_schema(schema)).is_valid(value)


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        (record(v=SHAPES), [{"v": {"kind": "a", "x": 1}}, {"v": {"kind": "b", "y": ""}}], [{"v": {}}, {"v": {"x": 1}}]),
        (record(v=SHAPES), [], [{"v": {"kind": "a", "x": 1, "e": 2}}, {"v": {"kind": "a", "x": 1, "y": ""}}, {}]),
        (record(v={"anyOf": [X, NULL]}), [{"v": {"x": 1}}, {"v": None}], [{"v": {}}, {"v": {"x": 1, "e": 2}}]),
        ({"anyOf": [X, Y]}, [{"x": 1}, {"y": ""}], [{}, {"q": 1}, {"x": 1, "y": ""}, {"x": 1, "q": 2}]),
        ({"oneOf": [X, XY]}, [{"x": 1}, {"x": 1, "y": ""}], [{}, {"y": ""}, {"x": 1, "e": 2}]),
        ({"allOf": [X, Y]}, [{"x": 1, "y": ""}], [{}, {"x": 1}, {"y": ""}, {"x": 1, "y": "", "e": 1}]),
        ({"allOf": [X | {"additionalProperties": False}, Y]}, [{"x": 1, "y": ""}], [{"x": 1}]),
        (X | {"allOf": [Y]}, [{"x": 1, "y": ""}], [{"x": 1}, {"x": 1, "y": "", "e": 1}]),
        (X | {"anyOf": [Y, kind("a")]}, [{"x": 1, "y": ""}, {"x": 1, "kind": "a"}], [{"x": 1}, {"y": ""}]),
        ({"allOf": [{"anyOf": [X, Y]}]}, [{"x": 1}, {"y": ""}], [{}, {"x": 1, "e": 1}]),
        ({"type": "array", "prefixItems": [X]}, [[{"x": 1}]], [[{}], [{"x": 1, "e": 1}]]),
        ({"type": "array", "prefixItems": [X], "items": Y}, [[{"x": 1}, {"y": ""}]], [[{"x": 1}, {}]]),
        ({"additionalProperties": X}, [{"any": {"x": 1}}], [{"any": {}}, {"any": {"x": 1, "e": 1}}]),
        ({"patternProperties": {"^a": X}}, [{"a1": {"x": 1}}], [{"a1": {}}, {"a1": {"x": 1, "e": 1}}]),
        (X | {"patternProperties": {"^a": INTEGER}}, [{"x": 1, "a1": 2}], [{"x": 1, "b": 2}, {"x": 1, "a1": ""}]),
        (X | {"additionalProperties": INTEGER}, [{"x": 1}], [{"x": 1, "e": 2}]),
        (record(v={"$ref": "#/$defs/base"}) | BASE, [{"v": {"x": 1, "y": ""}}], [{"v": {"x": 1}}, {"v": {}}]),
        (record(v={"$ref": "#/$defs/shapes"}) | BASE, [{"v": {"kind": "a", "x": 1}}], [{"v": {"kind": "a"}}]),
        ({"$ref": "#/$defs/x"} | Y | BASE, [{"x": 1, "y": ""}], [{"x": 1}, {"y": ""}, {"x": 1, "y": "", "e": 1}]),
        ({"allOf": [{"$ref": "#/$defs/x"}, Y]} | BASE, [{"x": 1, "y": ""}], [{"x": 1}, {"x": 1, "y": "", "e": 1}]),
        (BY_KIND, [{"kind": "a", "x": 1}, {"kind": "b", "y": ""}], [{"kind": "a"}, {"kind": "b", "x": 1}]),
        (BY_KIND, [], [{"kind": "a", "x": 1, "y": ""}, {"x": 1}, {"kind": "b", "y": "", "e": 1}]),
        (X | {"dependentSchemas": {"x": Y}}, [{"x": 1, "y": ""}], [{"x": 1}, {"x": 1, "y": "", "e": 1}]),
        ({"type": "array", "contains": X}, [[{"x": 1}], [{"x": 1, "y": 2}]], [[{}], []]),
        (X | {"not": record(x={"const": 3})}, [{"x": 1}], [{"x": 3}]),
        (TREE, [{"value": 1, "children": [{"value": 2, "children": []}]}], [{"value": 1}]),
        (TREE, [], [{"value": 1, "children": [{}]}, {"value": 1, "children": [{"value": 2, "children": [], "e": 1}]}]),
        (record(properties=TEXT, required=INTEGER), [{"properties": "", "required": 1}], [{"properties": ""}]),
        (record(v={"type": "object"}), [{"v": {}}, {"v": {"any": 1}}], [{}]),
        ({"properties": {"x": INTEGER}}, [{"x": 1}], [3, "x", [1], None]),
        ({"anyOf": [{"properties": {"x": INTEGER}}, {"items": INTEGER}]}, [{"x": 1}, [1]], [3, "x", None]),
        ({"$ref": "#/$defs/v", "$defs": {"v": {"allOf": [{"properties": {"x": INTEGER}}]}}}, [{"x": 1}], [3, None]),
        ({"additionalProperties": INTEGER}, [{"x": 1}], [3, "x"]),
        ({"type": ["object", "null"], "allOf": [{"properties": {"x": INTEGER}}]}, [{"x": 1}, None], [3]),
        ({"properties": {"x": INTEGER}, "nullable": True}, [{"x": 1}, None], [3]),
    ],
)
def test_every_place_is_strict(schema, right, wrong):
    assert [value for value in right if not meets(schema, value)] == []
    assert [value for value in wrong if meets(schema, value)] == []


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        (CHAIN, [{"value": 1}, {"value": 1, "next": {"value": 2}}], [{"next": {"value": 1}}, {"value": 1, "next": {}}]),
        (record(v=INTEGER, child={"$ref": "#"}), [{"v": 1}, {"v": 1, "child": {"v": 2}}], [{"v": 1, "child": {}}]),
        (ENDED, [{"value": 1, "next": None}], [{"value": 1}]),
        (CONTACT, [{"id": 1, "mail": ""}, {"id": 1, "phone": ""}], [{"id": 1}, {"id": 1, "mail": "", "phone": ""}]),
        (XY | {"not": {"required": ["x", "y"]}}, [{"x": 1}, {"y": ""}], [{"x": 1, "y": ""}]),
    ],
)
def test_a_property_that_no_document_could_have_is_not_required(schema, right, wrong):
    assert [value for value in right if not meets(schema, value)] == []
    assert [value for value in wrong if meets(schema, value)] == []


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"type": "string", "enum": ["a"]},
        {"const": "a"},
        {"anyOf": [INTEGER, TEXT]},
        {"oneOf": [INTEGER, TEXT]},
        {"allOf": [TEXT, {"minLength": 1}]},
        {"$ref": "#/$defs/text"},
        {"type": ["string", "integer"]},
        {"not": NULL},
    ],
)
@pytest.mark.parametrize("nullable", [True, "true", False])
def test_null_is_allowed_beside_every_keyword(schema, nullable):
    whole = record(v=schema | {"nullable": nullable}) | {"$defs": {"text": TEXT}}
    assert meets(whole, {"v": "a"})
    assert meets(whole, {"v": None}) == (nullable is not False)
    assert not meets(whole, {})


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"$ref": "http://x/y"}, "without references to other documents; found 'http://x/y'"),
        ({"items": {"anyOf": [{"$ref": "other.json#/a"}]}}, "other documents; found 'other.json#/a'"),
        ({"properties": {"a": {"$ref": "#/$defs/a"}}}, "or to nothing; found '#/\\$defs/a'"),
        ({"$dynamicRef": "#a"}, "to refer by \\$ref; found \\$dynamicRef"),
    ],
)
def test_references_that_lead_nowhere_are_refused(schema, message):
    with pytest.raises(UserError, match=message):
        strict_schema(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"allOf": [X, {"$ref": "#/$defs/a"}]}}},
        record(x=INTEGER) | {"anyOf": [{"$ref": "#"}, {"type": "object"}]},
        record(x={"$ref": "#/properties/x"}),
        record(x=INTEGER) | {"dependentSchemas": {"x": {"not": {"$ref": "#"}}}},
        record(x=INTEGER) | {"if": {"$ref": "#"}},
    ],
)
def test_a_schema_that_describes_a_place_by_itself_is_refused(schema):
    """Such a row scored every answer 0."""
    with pytest.raises(UserError, match="or to pass through a property or an item; found one that leads to itself"):
        strict_schema(schema)


@pytest.mark.parametrize("place", ["items", "additionalProperties", "contains", "propertyNames"])
def test_a_schema_may_hold_itself(place):
    strict_schema({"anyOf": [INTEGER, {place: {"$ref": "#"}}]})


def test_references_by_pointer_and_anchor_work_wherever_they_stand():
    schema = record(a=X, b={"$ref": "#/properties/a"}, c={"$ref": "#text"}) | {
        "definitions": {"t": TEXT | {"$anchor": "text"}}
    }
    assert meets(schema, {"a": {"x": 1}, "b": {"x": 2}, "c": ""})
    assert not meets(schema, {"a": {"x": 1}, "b": {}, "c": ""})
    assert not meets(schema, {"a": {"x": 1}, "b": {"x": 2}, "c": 3})


# A schema and a document that meets it, from which the wrong documents are made.

LEAVES = st.sampled_from(
    [(INTEGER, 7), (TEXT, "red"), ({"type": "boolean"}, True), (NULL, None), ({"enum": [3, "a"]}, "a")]
)


def _record(pairs):
    schemas = {name: schema for name, (schema, _) in pairs.items()}
    return record(**schemas), {name: value for name, (_, value) in pairs.items()}


def _halves(pair):
    """The same object, described by two members of `allOf`."""
    schema, value = pair
    names = sorted(value)
    halves = [{name: schema["properties"][name] for name in half} for half in (names[::2], names[1::2]) if half]
    return {"allOf": [record(**half) for half in halves]}, value


def _forms(pairs):
    schemas = pairs.map(_record)
    return st.one_of(
        schemas,
        schemas.map(_halves),
        schemas.map(lambda pair: ({"anyOf": [pair[0], NULL]}, pair[1])),
        schemas.map(lambda pair: ({"oneOf": [record(other_=TEXT), pair[0]]}, pair[1])),
        schemas.map(lambda pair: (pair[0] | {"nullable": True}, pair[1])),
        schemas.map(lambda pair: ({"$define": pair[0]}, pair[1])),
    )


def objects(inner):
    return _forms(st.dictionaries(st.sampled_from("abcd"), inner, min_size=1, max_size=3))


def lists(inner):
    return st.one_of(
        inner.map(lambda pair: ({"type": "array", "items": pair[0]}, [pair[1]] * 2)),
        inner.map(lambda pair: ({"type": "array", "prefixItems": [pair[0]], "minItems": 1}, [pair[1]])),
    )


PAIRS = objects(st.recursive(LEAVES, lambda inner: objects(inner) | lists(inner), max_leaves=6))


def hoisted(schema, definitions):
    """`schema` with each `$define` as a reference to an entry of `definitions`."""
    if isinstance(schema, list):
        return [hoisted(each, definitions) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$define" in schema:
        definitions[name := f"d{len(definitions)}"] = None
        definitions[name] = hoisted(schema["$define"], definitions)
        return {"$ref": f"#/$defs/{name}"}
    return {name: hoisted(value, definitions) for name, value in schema.items()}


def perturbed(value):
    """`value` with one thing wrong, in every way: a key more or less, another type, at every depth."""
    yield {"wrong": 1} if not isinstance(value, dict) else [value]
    if isinstance(value, dict):
        yield value | {"extra": 1}
        for name in value:
            yield {other: value[other] for other in value if other != name}
            yield from (value | {name: wrong} for wrong in perturbed(value[name]))
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from ([*value[:index], wrong, *value[index + 1 :]] for wrong in perturbed(item))


@given(PAIRS)
@settings(max_examples=60, deadline=None)
def test_a_right_document_meets_its_schema_and_every_perturbation_of_it_does_not(pair):
    definitions = {}
    schema = hoisted(pair[0], definitions) | {"$defs": definitions}
    validator = schema_validator(json.loads(json.dumps(strict_schema(schema))))
    assert validator.is_valid(pair[1])
    assert [wrong for wrong in perturbed(pair[1]) if validator.is_valid(wrong)] == []
