"""Tool calls: compares the calls of one answer with the expected ones; none may be made if a message is expected.

Rows are those of NeMo-Gym's `single_step_tool_use_with_argument_comparison` server, with these differences:

- Calls match one to one, in any order; Gym compares only the first call, or makes surplus ones cheap.
- `true` is not 1, while 1 equals 1.0; Gym follows Python's types.
- Longer texts are equal if the F1 of their case-folded words is at least MIN_WORD_F1 (Gym's 0.3 of at most 0.5) and
  every word with a digit is the same: an amount or a date that is off by one makes another call.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.core.verdict import Verdict, final_answer
from cascade_rl.rl_stages.rewards.verifiers.structured.documents import Malformed, parse_document
from cascade_rl.rl_stages.rewards.verifiers.structured.tool_text import ToolCall, parameters_by_tool, split_calls

if TYPE_CHECKING:
    from cascade_rl.rl_stages.core.task import Task

MIN_WORD_F1 = 0.6
TOLERANCE = 1e-6  # of floats, relative and absolute
ACTIONS = ("function_call", "function_call_batch", "message")


def same_value(given: Any, expected: Any) -> bool:
    """Whether two JSON values mean the same. Order counts in lists, not in objects."""
    if isinstance(expected, bool) or isinstance(given, bool) or expected is None:
        return given is expected
    if isinstance(expected, int | float):
        return isinstance(given, int | float) and same_number(given, expected)
    if type(given) is not type(expected):
        return False
    if isinstance(expected, str):
        return same_text(given, expected)
    if isinstance(expected, dict):
        return given.keys() == expected.keys() and all(same_value(given[key], expected[key]) for key in expected)
    return len(given) == len(expected) and all(map(same_value, given, expected))


def same_number(given: float, expected: float) -> bool:
    if isinstance(given, int) and isinstance(expected, int):
        return given == expected
    return math.isclose(given, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def same_text(given: str, expected: str) -> bool:
    """Whether texts are equal or, if both have two or more words, similar by the F1 of their words."""
    words = [Counter(text.casefold().split()) for text in (given, expected)]
    total = words[0].total() + words[1].total()
    if min(words[0].total(), words[1].total()) < 2:
        return given == expected
    exact = [Counter({word: count for word, count in each.items() if any(map(str.isdigit, word))}) for each in words]
    return exact[0] == exact[1] and 2 * (words[0] & words[1]).total() / total >= MIN_WORD_F1


def same_call(given: ToolCall, expected: ToolCall) -> bool:
    return given.name == expected.name and same_value(given.arguments, expected.arguments)


def matched(given: Sequence[ToolCall], expected: Sequence[ToolCall]) -> int:
    """The most one-to-one matches. Texts need only be similar, so the first match may belong to another call."""
    partner: dict[int, int] = {}  # given call -> expected call

    def place(wanted: int, tried: set[int]) -> bool:
        for index, call in enumerate(given):
            if index not in tried and same_call(call, expected[wanted]):
                tried.add(index)
                if index not in partner or place(partner[index], tried):
                    partner[index] = wanted
                    return True
        return False

    return sum(place(wanted, set()) for wanted in range(len(expected)))


def parse_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """`tools` by name and the expected `calls`, none if a message is expected; checked (UserError)."""
    try:
        tools = parameters_by_tool(row.get("responses_create_params", {}).get("tools"))
    except ValueError as error:
        raise UserError(f"expected 'responses_create_params.tools' to be {error}") from None
    action = row.get("expected_action")
    if not isinstance(action, dict) or action.get("type") not in ACTIONS:
        raise UserError(f"expected 'expected_action' to have a 'type' among {', '.join(ACTIONS)}; found {action!r}")
    if action["type"] == "message":
        return {"tools": tools, "calls": []}
    calls = action.get("calls") if action["type"] == "function_call_batch" else [action]
    if not isinstance(calls, list) or not calls:
        raise UserError(f"expected 'expected_action.calls' to be a non-empty list; found {calls!r}")
    return {"tools": tools, "calls": [_expected(call, tools) for call in calls]}


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
        count = matched(given, expected)
        parts = {"matched": count / len(expected)} if expected else {}
        return Verdict.scored(float(count == len(expected)), parts, f"{count} of {len(expected)} calls match")

    def close(self) -> None:
        """Nothing was started."""
