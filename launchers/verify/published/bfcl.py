"""BFCL: the calls of the ground truth score 1; the same calls with another value, name or number of calls score 0.

A ground truth lists the accepted values of each argument, an empty one for an argument that may be left out. Our rows
have one value, so the first is expected, and a call without the others is what is scored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cascade_rl.launchers.verify.published.case import Case, asking
from cascade_rl.rl_stages.data.rows import Row

TYPES = {"dict": "object", "float": "number", "tuple": "array"}  # Python's names in place of JSON Schema's
SETS = (
    *("simple_python", "multiple", "parallel", "parallel_multiple"),
    *("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple"),
)
WITHOUT_CALL = ("irrelevance", "live_irrelevance")
Call = dict[str, Any]


def cases(folder: Path) -> Iterator[Case]:
    for data in folder.glob("bfcl_eval/data"):
        for name in SETS:
            expected = {row["id"]: row["ground_truth"] for row in rows_of(data / "possible_answer", name)}
            for row in rows_of(data, name):
                yield from of_row(name, row, [_call(call) for call in expected[row["id"]]])
        for name in WITHOUT_CALL:
            for row in rows_of(data, name):
                yield from _without_call(name, row)


def of_row(name: str, row: Row, calls: list[Call]) -> Iterator[Case]:
    """The right calls, and wrong ones."""
    task = expecting(row, calls)
    yield Case(name, row["id"], task, (said(calls),), 1.0)
    for number, wrong in enumerate(perturbed(calls)):
        yield Case(f"{name}, perturbed", f"{row['id']}/{number}", task, (said(wrong),), 0.0)


def _without_call(name: str, row: Row) -> Iterator[Case]:
    tools = row["function"]
    if tools:
        task = _task(row, {"type": "message"})
        yield Case(name, row["id"], task, ("None of the functions does that.",), 1.0)
        yield Case(f"{name}, perturbed", row["id"], task, (said([{"name": tools[0]["name"], "arguments": {}}]),), 0.0)


def perturbed(calls: list[Call]) -> Iterator[list[Call]]:
    """Without a call, with one twice, with another name, and with another value of the first argument."""
    first, *others = calls
    yield others
    yield [*calls, first]
    yield [first | {"name": f"{first['name']}_"}, *others]
    for key, value in list(first["arguments"].items())[:1]:
        yield [first | {"arguments": first["arguments"] | {key: _other(value)}}, *others]


def _other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return f"not {value}" if isinstance(value, str) else None


def _call(truth: Mapping[str, Any]) -> Call:
    """Arguments with their first accepted value, without those that may be absent."""
    ((name, arguments),) = truth.items()
    return {"name": name, "arguments": _first([arguments])}


def _first(accepted: Any) -> Any:
    """Of an object, or a list of objects, the keys have lists of accepted values too, or one value."""
    if not isinstance(accepted, list):
        return accepted
    value = accepted[0] if accepted else []
    if isinstance(value, dict):
        return {key: _first(inner) for key, inner in value.items() if not isinstance(inner, list) or "" not in inner}
    return [_first([item]) if isinstance(item, dict) else item for item in value] if isinstance(value, list) else value


def _wanted(call: Call) -> Row:
    return {"type": "function_call", "name": call["name"], "arguments": json.dumps(call["arguments"])}


def said(calls: list[Call]) -> str:
    return "\n".join(f"<tool_call>{json.dumps(call)}</tool_call>" for call in calls) or "No call."


def expecting(row: Row, calls: list[Call]) -> Row:
    """The row of `tool_call` that expects `calls`."""
    return _task(row, {"type": "function_call_batch", "calls": [_wanted(call) for call in calls]})


def _task(row: Row, expected: Row) -> Row:
    question = "\n".join(message["content"] for turn in row["question"] for message in turn)
    task = dict(asking(question, "tool_call", expected_action=expected))
    tools = [{"type": "function", **_schema(function)} for function in row["function"]]
    task["responses_create_params"] = {**task["responses_create_params"], "tools": tools}
    return task


def _schema(value: Any) -> Any:
    """With JSON Schema's types, and without a type for what may be anything."""
    if isinstance(value, list):
        return [_schema(item) for item in value]
    if not isinstance(value, dict):
        return value
    found = {key: _schema(item) for key, item in value.items()}
    if isinstance(found.get("type"), str):
        found["type"] = TYPES.get(found["type"], found["type"])
    return {key: item for key, item in found.items() if (key, item) != ("type", "any")}


def rows_of(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"BFCL_v4_{name}.json").read_text().splitlines()]
