"""The worker process of structured outputs: parses a document and validates it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jsonschema.exceptions import best_match

from cascade_rl.rl_stages.rewards.deadline_worker import Reply, serve
from cascade_rl.rl_stages.rewards.verifiers.structured.documents import Malformed, parse_document
from cascade_rl.rl_stages.rewards.verifiers.structured.schema_validator import schema_validator
from cascade_rl.rl_stages.rewards.verifiers.structured.text_leaves import TextLeaves


def reply(request: Mapping[str, Any]) -> Reply:
    """The score of `text` read as `kind`: null if it does not parse, 1 if it meets `schema`, else 0."""
    kind, schema = request["kind"], request["schema"]
    try:
        value = parse_document(kind, request["text"])
    except Malformed as error:
        return {"score": None, "detail": str(error)}
    if kind == "csv":
        schema = table_schema(schema)
    try:
        why = objection(typed(kind, value, schema), schema)
    except (ArithmeticError, RecursionError) as failure:
        why = f"not evaluated: {type(failure).__name__}"
    return {"score": float(why is None), "detail": why or "valid"}


def typed(kind: str, value: Any, schema: Mapping[str, Any]) -> Any:
    """`value` with its text leaves read as `schema` asks, and without a root element that `schema` does not name."""
    if kind not in ("xml", "csv"):
        return value
    leaves = TextLeaves(kind, schema)
    root = next(iter(value), None) if kind == "xml" else None
    return leaves.typed(value if root is None or root in leaves.names() else value[root])


def table_schema(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of a CSV's rows, where `schema` is that of all rows or of one."""
    if TextLeaves("csv", schema).is_list():
        return schema
    return {"type": "array", "items": schema, "$defs": schema.get("$defs", {})}


def objection(value: Any, schema: Mapping[str, Any]) -> str | None:
    """Why `value` scores 0: its most relevant violation, or that it is empty, which says nothing; else None."""
    if value in ({}, []):
        return "an empty document"
    error = best_match(schema_validator(schema).iter_errors(value))
    return None if error is None else f"{error.json_path}: {error.message[:200]}"


if __name__ == "__main__":
    serve(reply)
