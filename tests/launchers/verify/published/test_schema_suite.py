"""The suite of JSON Schema, as cases."""

import json
from pathlib import Path

from cascade_rl.launchers.verify.published import schema_suite


def test_what_can_be_a_row_is_a_case_of_its_group(tmp_path: Path) -> None:
    tests = [
        {"description": "good", "data": 1, "valid": True},
        {"description": "bad", "data": "x", "valid": False},
        {"description": "says nothing", "data": {}, "valid": False},
    ]
    parts = [{"description": "d", "schema": schema, "tests": tests} for schema in ({"type": "integer"}, False)]
    for name in ("type.json", "optional/format/date.json", "optional/bignum.json"):
        path = tmp_path / "jsonschema-1.0/json/tests/draft2020-12" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(parts))
    found = [(case.group, case.id, case.turns, case.score) for case in schema_suite.cases(tmp_path)]
    assert found == [
        ("formats, valid", "date: d: good", ("1",), 1.0),
        ("formats, invalid", "date: d: bad", ('"x"',), 0.0),
        ("documents, valid", "type: d: good", ("1",), 1.0),
        ("documents, invalid", "type: d: bad", ('"x"',), 0.0),
    ]
