"""What each plain scalar is in YAML 1.2's core schema: perlpunk/yaml-test-schema, in yamlcore's source distribution.

Its scalars with a tag are left out: an answer may have none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import yaml

from cascade_rl.launchers.verify.published.case import Case, asking

TABLE = "yamlcore-*/tests/data/core.schema"
TYPES = {"bool": "boolean", "int": "integer", "float": "number", "inf": "number", "nan": "number", "null": "null"}
NOT_IN_JSON = ("inf", "nan")
READ: dict[str, Callable[[str], object]] = {"bool": "true()".__eq__, "int": int, "float": float, "null": lambda _: None}


def cases(folder: Path) -> Iterator[Case]:
    """A document of one key: a schema for the scalar's type and value accepts it, one for any other type does not."""
    for path in folder.glob(TABLE):
        for scalar, (kind, value, _) in yaml.safe_load(path.read_text()).items():
            if "!" not in scalar:
                text, of_type = f"value: {scalar.replace('#empty', '')}\n", TYPES.get(kind, "string")
                right = _row({"type": of_type} | _constant(kind, value))
                wrong = _row({"type": "number" if of_type == "string" else "string"})
                yield Case("scalars", scalar, right, (text,), 1.0)
                yield Case("scalars of another type", scalar, wrong, (text,), 0.0)


def _row(schema: dict[str, object]) -> dict[str, object]:
    whole = json.dumps({"type": "object", "properties": {"value": schema}})
    return dict(asking("Write it.", "structured_output", schema_type="yaml", schema_str=whole))


def _constant(kind: str, value: str) -> dict[str, object]:
    """The schema's part for the value. JSON has none for infinity."""
    return {} if kind in NOT_IN_JSON else {"const": READ.get(kind, str)(value)}
