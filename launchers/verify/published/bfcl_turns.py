"""BFCL's multi-turn rows, turn by turn: the calls of the ground truth score 1, and wrong ones 0.

BFCL itself runs the calls and compares the state of its services (`bfcl_services.py`). Here a turn is a row that
expects its calls. A turn without any, which asks for a function or a value that is missing, is left out: what the
model may do in it is not said.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

from cascade_rl.launchers.verify.published.bfcl import Call, of_row, rows_of
from cascade_rl.launchers.verify.published.case import Case
from cascade_rl.rl_stages.data.rows import Row

SETS = tuple(f"multi_turn_{kind}" for kind in ("base", "miss_func", "miss_param", "long_context"))
Functions = Mapping[str, dict[str, Any]]


def cases(folder: Path) -> Iterator[Case]:
    for data in folder.glob("bfcl_eval/data"):
        functions = functions_of(data)
        for name in SETS:
            truth = {row["id"]: row["ground_truth"] for row in rows_of(data / "possible_answer", name)}
            for row in rows_of(data, name):
                for _, turn, calls in turns_of(row, truth[row["id"]], functions):
                    yield from of_row(name, turn, calls)


def turns_of(
    row: Mapping[str, Any], truth: list[list[str]], functions: Functions
) -> Iterator[tuple[int, Row, list[Call]]]:
    """Number, row and calls of each turn that has calls."""
    asked = accumulate([question] for question in row["question"])
    for number, (question, written) in enumerate(zip(asked, truth, strict=True)):
        calls = [call_of(text, functions) for text in written]
        if calls:
            tools = [functions[called] for called in dict.fromkeys(call["name"] for call in calls)]
            yield number, {"id": f"{row['id']}/{number}", "question": question, "function": tools}, calls


def call_of(text: str, functions: Functions) -> Call:
    """A call that is written in Python. Arguments without a name are in the order of the function's schema."""
    call = ast.parse(text, mode="eval").body
    assert isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
    names = list(functions[call.func.id]["parameters"]["properties"])
    given = dict(zip(names, call.args, strict=False)) | {str(word.arg): word.value for word in call.keywords}
    return {"name": call.func.id, "arguments": {name: ast.literal_eval(value) for name, value in given.items()}}


def functions_of(data: Path) -> dict[str, dict[str, Any]]:
    lines = [line for path in sorted(data.glob("multi_turn_func_doc/*.json")) for line in path.read_text().splitlines()]
    return {function["name"]: function for function in map(json.loads, lines)}
