"""Workplace assistant: tool calls on an office, judged by its final state.

Rows are those of NeMo-Gym's server `workplace_assistant`: `responses_create_params` and `ground_truth`, a list of
{"name": ..., "arguments": object or its JSON}. The office is the row's own small one, `initial_state`
{table: {id: record}}, or NeMo-Gym's, whose tables only nemo-gym has. The score is 1 if the final office is the one
that the expected calls leave, else 0. Any calls that lead there are right; a change too many is not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.core.verdict import Verdict, final_answer
from cascade_rl.rl_stages.environments import nemo_gym_office, nemo_gym_tables, small_office
from cascade_rl.rl_stages.environments.environment import End, Observation
from cascade_rl.rl_stages.environments.office import Office, Tables, Tool, ToolError
from cascade_rl.rl_stages.rewards.verifiers.structured.documents import Malformed, parse_document
from cascade_rl.rl_stages.rewards.verifiers.structured.tool_text import ToolCall, split_calls

if TYPE_CHECKING:
    from cascade_rl.rl_stages.core.task import Task

MAX_OBSERVATION = 16_000  # characters shown of one call's output


def parse_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """`start`, the tables of the row's own office or None, and `calls`, which have been tried out.

    UserError on a malformed row, and if a row needs NeMo-Gym's tables and they are not found.
    """
    start = _tables(row["initial_state"]) if "initial_state" in row else None
    truth = row.get("ground_truth")
    if not isinstance(truth, list):
        raise UserError(f"expected 'ground_truth' to be a list of calls; found {truth!r}")
    calls = [_call(entry) for entry in truth]
    untouched = _office(start)
    if calls and untouched.same_as(_replayed(start, calls)):
        raise UserError("expected 'ground_truth' to change the office, else doing nothing would pass; found no change")
    return {"start": start, "calls": calls}


class Workplace:
    """The environment. Its steps are too short to gain from more than one thread."""

    concurrency, step_seconds = 1, 30.0

    def start(self, task: Task) -> WorkplaceEpisode:
        return WorkplaceEpisode(task.metadata["start"], task.metadata["calls"])

    def close(self) -> None:
        """Nothing was started."""


class WorkplaceEpisode:
    """Makes the calls of each turn in their order. A turn without a call ends the episode."""

    def __init__(self, start: Tables | None, calls: list[ToolCall]) -> None:
        self.office, self.expected = _office(start), _replayed(start, calls)
        self.schemas = {name: _schema(tool) for name, tool in self.office.tools.items()}

    def step(self, text: str) -> Observation | End:
        answer = final_answer(text)
        if answer is None:
            return End(Verdict.wrong_format("expected a call or an answer after the reasoning; found none"))
        try:
            _, calls = split_calls(answer, self.schemas)
        except Malformed as error:
            return Observation.of_tools(f"error: {error}")
        if not calls:
            return self._end()
        return Observation.of_tools(*map(self._made, calls))

    def close(self) -> None:
        """Nothing was started."""

    def _made(self, call: ToolCall) -> str:
        try:
            shown = self.office.call(call.name, call.arguments)
        except ToolError as error:
            return f"error: {error}"
        cut = f"... ({len(shown)} characters in all)" if len(shown) > MAX_OBSERVATION else ""
        return shown[:MAX_OBSERVATION] + cut

    def _end(self) -> End:
        right = self.office.same_as(self.expected)
        return End(Verdict.scored(float(right), detail=f"the office is {'' if right else 'not '}as expected"))


def _office(start: Tables | None) -> Office:
    if start is None:
        return Office(nemo_gym_tables.start(), nemo_gym_office.TOOLS)
    return Office(start, small_office.TOOLS)


def _schema(tool: Tool) -> dict[str, Any]:
    return {"properties": {name: {"type": "string"} for name in (*tool.required, *tool.optional)}}


def _replayed(start: Tables | None, calls: list[ToolCall]) -> Office:
    office = _office(start)
    for call in calls:
        try:
            office.call(call.name, call.arguments)
        except ToolError as error:
            raise UserError(f"expected 'ground_truth' calls that the tools accept; found {call}: {error}") from None
    return office


def _call(entry: object) -> ToolCall:
    form = '{"name": a tool, "arguments": an object or its JSON}'
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise UserError(f"expected 'ground_truth' to hold {form}; found {entry!r}")
    arguments = entry.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = parse_document("json", arguments)
        except Malformed as error:
            raise UserError(f"expected 'ground_truth' to hold {form}; found {entry!r} ({error})") from None
    if not isinstance(arguments, dict):
        raise UserError(f"expected 'ground_truth' to hold {form}; found {entry!r}")
    return ToolCall(entry["name"], arguments)


def _tables(value: object) -> Tables:
    form = f'{{table: {{"<table>-<number>": record of text}}}} with tables among {", ".join(small_office.FIELDS)}'
    if not isinstance(value, dict) or not value.keys() <= small_office.FIELDS.keys():
        raise UserError(f"expected 'initial_state' to be {form}; found {json.dumps(value, default=str)[:200]}")
    for table, rows in value.items():
        if not isinstance(rows, dict) or not all(_is_record(table, key, row) for key, row in rows.items()):
            raise UserError(f"expected 'initial_state.{table}' in the form of {form}; found {str(rows)[:200]}")
    return value


def _is_record(table: str, key: object, row: object) -> bool:
    prefix, _, number = str(key).rpartition("-")
    if prefix != table or not (number.isascii() and number.isdigit() and len(number) < 10) or not isinstance(row, dict):
        return False
    return set(row) == set(small_office.FIELDS[table]) and all(isinstance(value, str) for value in row.values())
