"""Tool calls: compares the calls of one answer with the expected ones; none may be made if a message is expected.

Rows are those of NeMo-Gym's `single_step_tool_use_with_argument_comparison` server, with these differences:

- Calls match one to one, in any order; Gym compares only the first call, or makes surplus ones cheap.
- `true` is not 1, while 1 equals 1.0; Gym follows Python's types.
- Texts are exact (`arguments.py`), and fuzzy only where a row says so. Gym compares all texts of a server as bags of
  words, so that `x < y` is `x > y`; its later servers name arguments, as these rows do:
  `"argument_comparison_overrides": {TOOL: {ARGUMENT: {"word_count_similarity_threshold": 0.3}}}`
- An argument whose schema says which texts it accepts (`enum`, `pattern`, `format`) has exactly the expected one.
- An argument that is left out has the `default` of its schema, if it has one (aisa-group/PostTrainBench#63).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from operator import eq
from typing import TYPE_CHECKING, Any

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.core.verdict import Verdict, final_answer
from cascade_rl.rl_stages.rewards.verifiers.structured.arguments import SameText, same_text, same_value, similar_text
from cascade_rl.rl_stages.rewards.verifiers.structured.documents import Malformed, parse_document
from cascade_rl.rl_stages.rewards.verifiers.structured.schema_types import ALL, limits_texts
from cascade_rl.rl_stages.rewards.verifiers.structured.tool_text import ToolCall, parameters_by_tool, split_calls

if TYPE_CHECKING:
    from cascade_rl.rl_stages.core.task import Task

ACTIONS = ("function_call", "function_call_batch", "message")
THRESHOLD = "word_count_similarity_threshold"

# How the texts of an argument are compared, by tool and argument, where not by `same_text`.
TextRules = Mapping[str, Mapping[str, SameText]]


def same_call(given: ToolCall, expected: ToolCall, rules: TextRules) -> bool:
    rule = rules.get(expected.name, {})
    return (
        given.name == expected.name
        and given.arguments.keys() == expected.arguments.keys()
        and all(
            same_value(given.arguments[name], value, rule.get(name, same_text))
            for name, value in expected.arguments.items()
        )
    )


def with_defaults(call: ToolCall, defaults: Mapping[str, Mapping[str, Any]]) -> ToolCall:
    """`call` with the arguments that it leaves to their defaults."""
    return ToolCall(call.name, {**defaults.get(call.name, {}), **call.arguments})


def matched(given: Sequence[ToolCall], expected: Sequence[ToolCall], rules: TextRules) -> int:
    """The most one-to-one matches. Texts may be similar only, so that the first match may belong to another call."""
    partner: dict[int, int] = {}  # given call -> expected call

    def place(wanted: int, tried: set[int]) -> bool:
        for index, call in enumerate(given):
            if index not in tried and same_call(call, expected[wanted], rules):
                tried.add(index)
                if index not in partner or place(partner[index], tried):
                    partner[index] = wanted
                    return True
        return False

    return sum(place(wanted, set()) for wanted in range(len(expected)))


def parse_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """`tools`, their `defaults`, the expected `calls` (none: a message) and how texts are compared, `rules`; checked
    (UserError)."""
    try:
        tools = parameters_by_tool(row.get("responses_create_params", {}).get("tools"))
    except ValueError as error:
        raise UserError(f"expected 'responses_create_params.tools' to be {error}") from None
    action = row.get("expected_action")
    if not isinstance(action, dict) or action.get("type") not in ACTIONS:
        raise UserError(f"expected 'expected_action' to have a 'type' among {', '.join(ACTIONS)}; found {action!r}")
    if action["type"] == "message":
        return {"tools": tools, "defaults": {}, "calls": [], "rules": {}}
    calls = action.get("calls") if action["type"] == "function_call_batch" else [action]
    if not isinstance(calls, list) or not calls:
        raise UserError(f"expected 'expected_action.calls' to be a non-empty list; found {calls!r}")
    defaults = {tool: _defaults(schema) for tool, schema in tools.items()}
    expected = [with_defaults(_expected(call, tools), defaults) for call in calls]
    fields = {"tools": tools | _as_expected(expected), "defaults": defaults}
    return fields | {"calls": expected, "rules": _rules(row, tools)}


def _defaults(schema: Mapping[str, Any]) -> dict[str, Any]:
    properties = (schema.get("properties") or {}).items()
    return {name: each["default"] for name, each in properties if isinstance(each, dict) and "default" in each}


def _as_expected(calls: Sequence[ToolCall]) -> dict[str, Any]:
    """Parameters of the tools of `calls` that are texts where a text is expected, else not.

    A value of the XML form may be a text and a number alike, if its schema admits both or says nothing.
    """
    values: dict[str, dict[str, list[Any]]] = {}
    for call in calls:
        of_tool = values.setdefault(call.name, {})
        for name, value in call.arguments.items():
            of_tool.setdefault(name, []).append(value)
    return {tool: {"properties": {name: _type_of(each) for name, each in of.items()}} for tool, of in values.items()}


def _type_of(values: Sequence[Any]) -> dict[str, Any]:
    texts = {isinstance(value, str) for value in values}
    return {} if len(texts) > 1 else {"type": "string" if True in texts else sorted(ALL - {"string"})}


def _rules(row: Mapping[str, Any], tools: Mapping[str, Any]) -> dict[str, dict[str, SameText]]:
    """Exactly the expected text where the schema says which it accepts, and similarity where the row says so."""
    rules: dict[str, dict[str, SameText]] = {
        tool: {name: eq for name, schema in (root.get("properties") or {}).items() if limits_texts(schema, root)}
        for tool, root in tools.items()
    }
    for tool, name, threshold in _overrides(row.get("argument_comparison_overrides") or {}):
        if name not in (tools.get(tool, {}).get("properties") or {}):
            raise UserError(f"expected 'argument_comparison_overrides' to name arguments of tools; found {tool}.{name}")
        rules[tool][name] = partial(similar_text, threshold=threshold)
    return rules


def _overrides(overrides: Any) -> Iterator[tuple[str, str, float]]:
    form = f'{{TOOL: {{ARGUMENT: {{"{THRESHOLD}": number above 0, at most 0.5}}}}}}'
    try:
        for tool, arguments in overrides.items():
            for name, override in arguments.items():
                threshold = override[THRESHOLD]
                if len(override) > 1 or isinstance(threshold, bool) or not 0 < threshold <= 0.5:
                    raise ValueError(override)
                yield tool, name, threshold
    except (AttributeError, KeyError, TypeError, ValueError):
        raise UserError(f"expected 'argument_comparison_overrides' to be {form}; found {overrides!r}") from None


def _expected(call: object, tools: Mapping[str, Any]) -> ToolCall:
    if not isinstance(call, dict) or call.get("name") not in list(tools):
        raise UserError(f"expected a call of one of the row's tools {sorted(tools)}; found {call!r}")
    arguments = call.get("arguments")
    try:
        value = parse_document("json", arguments if isinstance(arguments, str) else json.dumps(arguments))
    except Malformed as error:
        raise UserError(f"expected 'arguments' to be a JSON object; found {arguments!r} ({error})") from None
    if not isinstance(value, dict):
        raise UserError(f"expected 'arguments' to be a JSON object; found {arguments!r}")
    return ToolCall(call["name"], value)


class ToolCallVerifier:
    """Score 1 for exactly the expected calls, or for a message if one is expected; else 0.

    A call that does not parse is a wrong format. Text next to calls is allowed. `parts["matched"]` is the share
    of the expected calls that were made.
    """

    concurrency = 1

    def __call__(self, task: Task, text: str) -> Verdict:
        answer, expected = final_answer(text), task.metadata["calls"]
        if not answer:
            return Verdict.wrong_format("expected a call or a message after the reasoning; found none")
        try:
            _, given = split_calls(answer, task.metadata["tools"])
        except Malformed as error:
            return Verdict.wrong_format(str(error))
        if len(given) != len(expected):
            return Verdict.scored(0.0, detail=f"{len(given)} calls where {len(expected)} are expected")
        whole = [with_defaults(call, task.metadata["defaults"]) for call in given]
        count = matched(whole, expected, task.metadata["rules"])
        parts = {"matched": count / len(expected)} if expected else {}
        return Verdict.scored(float(count == len(expected)), parts, f"{count} of {len(expected)} calls match")

    def close(self) -> None:
        """Nothing was started."""
