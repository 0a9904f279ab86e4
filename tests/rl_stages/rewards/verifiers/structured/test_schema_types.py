import pytest

from cascade_rl.rl_stages.rewards.verifiers.structured.schema_types import ALL, admitted_types, limits_texts

ROOT = {
    "$defs": {
        "id": {"type": "string"},
        "loop": {"$ref": "#/$defs/loop"},
        "unit": {"enum": ["C", "F"]},
        "list": {"items": {"$ref": "#/$defs/unit"}},
    }
}


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": "number"}, {"number", "integer"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"type": "string", "nullable": True}, {"string", "null"}),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"string", "null"}),
        ({"oneOf": [{"$ref": "#/$defs/id"}, {"type": "null"}]}, {"string", "null"}),
        ({"allOf": [{"$ref": "#/$defs/id"}, {"minLength": 1}]}, {"string"}),
        ({"$ref": "#/$defs/id", "nullable": True}, {"string", "null"}),
        ({"enum": ["1", "2", None]}, {"string", "null"}),
        ({"const": "5"}, {"string"}),
        ({"const": True}, {"boolean"}),
        ({"$ref": "#/$defs/loop"}, ALL),
        ({"$ref": "#/$defs/none"}, ALL),
        ({"type": 3, "anyOf": "x"}, ALL),
        (None, ALL),
        (True, ALL),
    ],
)
def test_types_are_found_behind_every_keyword(schema, types):
    assert admitted_types(schema, ROOT) == types


@pytest.mark.parametrize(
    ("schema", "limited"),
    [
        ({"type": "string"}, False),
        ({"enum": ["C"]}, True),
        ({"$ref": "#/$defs/unit"}, True),
        ({"$ref": "#/$defs/list"}, True),
        ({"anyOf": [{"type": "null"}, {"pattern": "a"}]}, True),
        ({"$ref": "#/$defs/loop"}, False),
    ],
)
def test_a_schema_that_says_which_texts_it_accepts(schema, limited):
    assert limits_texts(schema, ROOT) == limited
