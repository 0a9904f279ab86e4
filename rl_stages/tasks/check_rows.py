"""Checks rows one by one, goes on behind a wrong one, and writes the rows that a stage can use."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import IO

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.data.rows import Row
from cascade_rl.rl_stages.data.sift import Report, Rule
from cascade_rl.rl_stages.tasks.demonstration import parse_demonstration
from cascade_rl.rl_stages.tasks.load_tasks import parse_task, split_of
from cascade_rl.rl_stages.tasks.pairs import is_pair, parse_pair
from cascade_rl.rl_stages.tasks.row_form import ANY, RowForm


def check_rows(
    rows: Iterable[tuple[str, Row | UserError]],
    rule: Rule | None = None,
    file: IO[bytes] | None = None,
    form: RowForm = ANY,
) -> Report:
    """Which rows are a valid task, demonstration or preference pair, and why the others are not.

    rule  also says why a valid row is left out
    file  where the usable rows are written
    form  of rows that are not NeMo-Gym's
    """
    report = Report()
    for where, row in rows:
        try:
            if isinstance(row, UserError):
                raise row
            label, reason = _label(row, where, form), rule(row) if rule else None
        except UserError as error:
            report.refuse(where, error)
            continue
        if reason is not None:
            report.drop(reason, where)
            continue
        report.kept[label] += 1
        if file:
            file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
    return report


def _label(row: Row, where: str, form: RowForm) -> str:
    row, form = form.renamed(row), replace(form, columns={})
    if is_pair(row):
        return "preference pairs" if parse_pair(row, where, form) else "preference pairs without a preference, not used"
    if "messages" in row or "completion" in row:
        parse_demonstration(row, where, form)
        return "demonstrations"
    task = parse_task(row, where, where, form)
    return f"{task.domain} {split_of(task.messages)}"
