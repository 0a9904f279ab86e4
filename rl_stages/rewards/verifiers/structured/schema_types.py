"""What a schema of a tool's parameters says without validating: the types that it admits, and whether it limits texts.

These schemas are a row's own, so that they may refer to nothing or be no schema. Such a part says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

ALL = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})
LIMITS = {"enum", "const", "pattern", "format"}
_OTHERS: dict[type, str] = {list: "array", dict: "object"}
NO_REFERENCE: frozenset[str] = frozenset()


def admitted_types(schema: Any, root: Mapping[str, Any], seen: frozenset[str] = NO_REFERENCE) -> frozenset[str]:
    """The JSON types that `schema` admits; `root` is the schema that its references are to."""
    if not isinstance(schema, Mapping):
        return ALL
    types = ALL & _named(schema.get("type"))
    if "enum" in schema or "const" in schema:
        values = schema["enum"] if isinstance(schema.get("enum"), list) else [schema.get("const")]
        types &= {name for value in values for name in _types_of(value)}
    target = _target(schema.get("$ref"), root, seen)
    inner = seen | {str(schema.get("$ref"))}
    for part in [target, *_list(schema.get("allOf"))]:
        types &= admitted_types(part, root, inner)
    for branches in (_list(schema.get("anyOf")), _list(schema.get("oneOf"))):
        if branches:
            types &= frozenset().union(*(admitted_types(each, root, inner) for each in branches))
    return types | {"null"} if schema.get("nullable") in (True, "true") else types


def limits_texts(schema: Any, root: Mapping[str, Any]) -> bool:
    """Whether `schema`, or one that it holds or refers to, says which texts it accepts."""
    return any(not LIMITS.isdisjoint(each) for each in _held(schema, root, NO_REFERENCE))


def _held(schema: Any, root: Mapping[str, Any], seen: frozenset[str]) -> Iterator[Mapping[str, Any]]:
    if isinstance(schema, list):
        for each in schema:
            yield from _held(each, root, seen)
    if isinstance(schema, Mapping):
        yield schema
        for each in schema.values():
            yield from _held(each, root, seen)
        yield from _held(_target(schema.get("$ref"), root, seen), root, seen | {str(schema.get("$ref"))})


def _target(reference: Any, root: Mapping[str, Any], seen: frozenset[str]) -> Any:
    if not isinstance(reference, str) or reference in seen:
        return None
    try:
        return Registry().resolver_with_root(DRAFT202012.create_resource(root)).lookup(reference).contents
    except Unresolvable:
        return None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _named(types: Any) -> frozenset[str]:
    named = {types} if isinstance(types, str) else {name for name in _list(types) if isinstance(name, str)}
    return frozenset(named | ({"integer"} if "number" in named else set())) or ALL


def _types_of(value: Any) -> set[str]:
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, int | float):
        return {"number", "integer"}
    return {"string"} if isinstance(value, str) else {_OTHERS.get(type(value), "null")}
