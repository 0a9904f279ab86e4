"""The worker process of structured outputs: parses a document and validates it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from cascade_rl.rl_stages.rewards.deadline_worker import Reply, serve
from cascade_rl.rl_stages.rewards.verifiers.structured.documents import Malformed, parse_document

_INTEGER = re.compile(r"[+-]?[0-9]{1,300}")
_NUMBER = re.compile(r"[+-]?([0-9]{1,300}(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


def reply(request: Mapping[str, Any]) -> Reply:
    """The score of `text` read as `kind`: null if it does not parse, 1 if it meets `schema`, else 0."""
    kind, schema = request["kind"], request["schema"]
    try:
        value = parse_document(kind, request["text"])
    except Malformed as error:
        return {"score": None, "detail": str(error)}
    if kind == "xml":
        value = typed(without_root(value, schema), schema)
    if kind == "csv":
        schema = schema if schema.get("type") == "array" else {"type": "array", "items": schema}
        value = typed(value, schema)
    why = objection(value, schema)
    return {"score": float(why is None), "detail": why or "valid"}


def objection(value: Any, schema: Mapping[str, Any]) -> str | None:
    """Why `value` scores 0: its most relevant violation, or that it is empty, which says nothing; else None."""
    if value in ({}, []):
        return "an empty document"
    try:
        error = best_match(Draft202012Validator(schema).iter_errors(value))
    except (ArithmeticError, RecursionError) as failure:
        return f"not evaluated: {type(failure).__name__}"
    return None if error is None else f"{error.json_path}: {error.message[:200]}"


def without_root(document: Mapping[str, Any], schema: Mapping[str, Any]) -> Any:
    """What the root element holds, unless the schema describes that element itself."""
    root = next(iter(document))
    return document if root in schema.get("properties", {}) else document[root]


def typed(value: Any, schema: object) -> Any:
    """`value` with its text leaves read as the types that `schema` asks for; text that cannot be read so stays text."""
    if not isinstance(schema, Mapping):
        return value
    types = schema.get("type", [])
    types = [types] if isinstance(types, str) else types
    if "array" in types and not (value is None and "null" in types):
        return [typed(item, schema.get("items")) for item in _items(value)]
    if "object" in types and isinstance(value, Mapping):
        properties = schema.get("properties", {})
        return {name: typed(item, properties.get(name)) for name, item in value.items()}
    return _scalar(value, types) if value is None or isinstance(value, str) else value


def _items(value: Any) -> list[Any]:
    """The items of an XML element: its repeated children `{"item": [..]}`, its only one, or nothing."""
    if isinstance(value, Mapping) and len(value) == 1:
        value = next(iter(value.values()))
    return value if isinstance(value, list) else [] if value is None else [value]


def _scalar(text: str | None, types: list[str]) -> Any:
    if not text:
        return None if "null" in types else "" if "string" in types else text
    if "integer" in types and _INTEGER.fullmatch(text):
        return int(text)
    if "number" in types and _NUMBER.fullmatch(text):
        return float(text)
    if "boolean" in types:
        return _BOOLEANS.get(text.lower(), text)
    return text


if __name__ == "__main__":
    serve(reply)
