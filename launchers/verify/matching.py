"""Finds the task of each answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cascade_rl.engine.core.errors import UserError
from cascade_rl.launchers.verify.answers import Answers, Given, Name
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.data.rows import Row
from cascade_rl.rl_stages.tasks.load_tasks import named_rows, parse_task
from cascade_rl.rl_stages.tasks.row_form import RowForm

NO_ROW = "its row is not in ROWS"


class Pair(NamedTuple):
    task: Task
    given: Given


def matched(sources: Sequence[str], answers: Answers, form: RowForm) -> list[Pair]:
    """The answers with their tasks, in their order. Rollouts whose row is not in `sources` are counted as left out.

    Only rows that are asked for are parsed. Raises UserError for a malformed one, for a name that two rows have, and
    for a line whose row is missing.
    """
    tasks = _tasks(sources, {given.name for given in answers.given}, form)
    pairs = [Pair(tasks[given.name], given) for given in answers.given if given.name in tasks]
    missing = [given for given in answers.given if given.name not in tasks]
    if not pairs or (missing and not answers.of_run):
        first = f"{missing[0].where}, of {missing[0].name}" if missing else "none that rules can score"
        raise UserError(
            f"expected answers to rows of {', '.join(sources)}; found {first}. Change the name, or the file of rows"
        )
    answers.left_out.update({NO_ROW: len(missing)} if missing else {})
    return pairs


def _tasks(sources: Sequence[str], wanted: set[Name], form: RowForm) -> dict[Name, Task]:
    found: dict[Name, Task] = {}
    for source in sources:
        for number, (task_id, where, row) in enumerate(named_rows(source), start=1):
            names = wanted.intersection(_names(number, task_id, row))
            if twice := found.keys() & names:
                raise UserError(f"{where}: expected one row of {min(twice)}; found a second. Name one of them")
            if names:
                found |= dict.fromkeys(names, parse_task(row, where, task_id, form))
    return found


def _names(number: int, task_id: str, row: Row) -> Iterator[Name]:
    yield Name("row", str(number))
    yield Name("id", task_id)
    if isinstance(row.get("id"), str | int):
        yield Name("id", str(row["id"]))
