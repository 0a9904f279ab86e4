"""The official suite of JSON Schema 2020-12 and of its formats, from jsonschema's source distribution.

Taken are the tests whose schema is an object and whose document says something. A row's schema is made strict, so a
document that the suite accepts may score 0; one that it refuses must.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cascade_rl.launchers.verify.published.case import Case, asking

SUITE = "jsonschema-*/json/tests/draft2020-12"


def cases(folder: Path) -> Iterator[Case]:
    for path in sorted([*folder.glob(f"{SUITE}/*.json"), *folder.glob(f"{SUITE}/optional/format/*.json")]):
        group = "format" if path.parent.name == "format" else "document"
        for part in json.loads(path.read_text()):
            if isinstance(part["schema"], dict):
                yield from _of_schema(group, path.stem, part)


def _of_schema(group: str, name: str, part: dict[str, Any]) -> Iterator[Case]:
    row = asking("Write it.", "structured_output", schema_type="json", schema_str=json.dumps(part["schema"]))
    for test in part["tests"]:
        if test["data"] not in ({}, []):
            which = f"{group}s, valid" if test["valid"] else f"{group}s, invalid"
            case = f"{name}: {part['description']}: {test['description']}"
            yield Case(which, case, row, (json.dumps(test["data"]),), float(test["valid"]))
