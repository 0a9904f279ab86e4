"""BFCL's multi-turn rows by its own checker, which compares the states of its services, beside our verdict on the turn.

In one turn of a row the calls are those of the ground truth, the same in reverse, without one, or with another name or
value; in its other turns they are those of the ground truth. The score is what BFCL says of the row.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from cascade_rl.launchers.verify.published.bfcl import Call, expecting, perturbed, rows_of, said
from cascade_rl.launchers.verify.published.bfcl_turns import functions_of, turns_of
from cascade_rl.launchers.verify.published.case import Case
from cascade_rl.launchers.verify.published.upstream import bfcl_states

SET = "multi_turn_base"
KINDS = ("without a call", "with one twice", "with another name", "with another value")
UNCOMPARED = "with one twice"  # BFCL passes a call that changes nothing as often as one likes
MOST_SECONDS = 300


def cases(folder: Path) -> Iterator[Case]:
    for checker in folder.glob("bfcl_eval/eval_checker"):
        asked = list(_asked(checker.with_name("data")))
        command = (sys.executable, "-m", bfcl_states.__name__, str(folder))
        lines = "".join(f"{line}\n" for line, _ in asked)
        found = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=MOST_SECONDS, check=True)
        for (_, case), verdict in zip(asked, found.stdout.splitlines(), strict=True):
            yield replace(case, score=float(json.loads(verdict)))


def _asked(data: Path) -> Iterator[tuple[str, Case]]:
    """What BFCL is asked, and the case without its score."""
    functions = functions_of(data)
    truths = {row["id"]: row["ground_truth"] for row in rows_of(data / "possible_answer", SET)}
    for row in rows_of(data, SET):
        truth = truths[row["id"]]
        for number, turn, calls in turns_of(row, truth, functions):
            for kind, given in _variants(calls):
                said_in_turns = [*truth[:number], list(map(_written, given)), *truth[number + 1 :]]
                case = Case(f"{SET}, states {kind}", turn["id"], expecting(turn, calls), (said(given),), 0.0)
                yield json.dumps([row, truth, said_in_turns]), case


def _variants(calls: list[Call]) -> Iterator[tuple[str, list[Call]]]:
    yield "as expected", calls
    if len(calls) > 1:
        yield "in reverse", calls[::-1]
    yield from ((kind, given) for kind, given in zip(KINDS, perturbed(calls), strict=False) if kind != UNCOMPARED)


def _written(call: Call) -> str:
    return f"{call['name']}({', '.join(f'{name}={value!r}' for name, value in call['arguments'].items())})"
