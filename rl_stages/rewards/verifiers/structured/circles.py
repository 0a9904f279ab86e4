"""Schemas that refer to themselves at one place, which no document can be checked against.

A schema may hold itself: in a property, in a list. One that describes a place by itself (`{"$ref": "#"}`) never comes
to an end, and the standard forbids it (JSON Schema 2020-12, section 9.4.1).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

from cascade_rl.engine.core.errors import UserError

LISTS_AT_PLACE = ("allOf", "anyOf", "oneOf")
AT_PLACE = ("if", "then", "else", "not")


def refuse_circles(definitions: Mapping[str, Any]) -> None:
    """Raises UserError if one of `definitions`, whose references are `#/$defs/NAME`, describes a place by itself."""
    graph = {f"#/$defs/{name}": set(_references(schema)) for name, schema in definitions.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError:
        raise UserError(
            "expected every $ref of 'schema_str' to come to an end, or to pass through a property or an item; found "
            'one that leads to itself, such as {"$ref": "#"} at the root. Change the reference'
        ) from None


def _references(schema: Any) -> Iterator[str]:
    """Those that describe the place of `schema` itself."""
    if not isinstance(schema, dict):
        return
    if "$ref" in schema:
        yield schema["$ref"]
    dependent = schema.get("dependentSchemas")
    parts = [
        *(schema.get(name) for name in AT_PLACE),
        *(each for name in LISTS_AT_PLACE for each in _list(schema.get(name))),
        *(dependent.values() if isinstance(dependent, dict) else ()),
    ]
    for part in parts:
        yield from _references(part)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
