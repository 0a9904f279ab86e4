"""What a command line says of rows that are not of NeMo-Gym's form, and whose rewards they may name."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from cascade_rl.engine.core.errors import UserError

if TYPE_CHECKING:
    from cascade_rl.rl_stages.tasks.row_form import RowForm


def add_arguments(parser: argparse.ArgumentParser) -> None:
    reward = "a python:, nemo-gym: or verifiers: reward that rows may name; can be repeated (default: none)"
    parser.add_argument("--reward", action="append", default=[], metavar="NAME", help=reward)
    plain_rows = "domain of rows with a plain prompt: math, python:pkg.mod:fn, ..."
    parser.add_argument("--domain", metavar="NAME", help=plain_rows)
    column = "a field and the column that has it, such as prompt=question; can be repeated"
    parser.add_argument("--column", action="append", default=[], metavar="FIELD=COLUMN", help=column)


def row_form(options: argparse.Namespace) -> RowForm:
    """Raises UserError for a column that names no field."""
    from cascade_rl.rl_stages.tasks.row_form import RowForm

    if wrong := [pair for pair in options.column if "=" not in pair]:
        raise UserError(f"--column: expected FIELD=COLUMN; found {wrong[0]!r}")
    rewards = [*options.reward, *([options.domain] if options.domain else [])]
    return RowForm(rewards, options.domain, dict(pair.split("=", 1) for pair in options.column))
