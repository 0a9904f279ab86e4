"""What a command line says of rows that are not of NeMo-Gym's form, and whose rewards they may name."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from cascade_rl.engine.core.errors import UserError

if TYPE_CHECKING:
    from cascade_rl.rl_stages.tasks.row_form import RowForm


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """For a command that scores answers."""
    reward = "a python:, nemo-gym: or verifiers: reward that rows may name; can be repeated (default: none)"
    parser.add_argument("--reward", action="append", default=[], metavar="NAME", help=reward)
    add_plain_rows(parser)


def add_plain_rows(parser: argparse.ArgumentParser) -> None:
    domain = "domain of rows with a plain prompt: math, python:pkg.mod:fn, ..."
    parser.add_argument("--domain", metavar="NAME", help=domain)
    column = "a field and the column that has it, such as prompt=question; can be repeated"
    parser.add_argument("--column", action="append", default=[], metavar="FIELD=COLUMN", help=column)


def row_form(options: argparse.Namespace) -> RowForm:
    """Raises UserError for a column that names no field."""
    return replace(plain_rows(options), rewards=[*options.reward, *([options.domain] if options.domain else [])])


def plain_rows(options: argparse.Namespace) -> RowForm:
    """Of a command that calls no reward. Raises UserError as `row_form` does."""
    from cascade_rl.rl_stages.tasks.row_form import RowForm

    if wrong := [pair for pair in options.column if "=" not in pair]:
        raise UserError(f"--column: expected FIELD=COLUMN; found {wrong[0]!r}")
    return RowForm(None, options.domain, dict(pair.split("=", 1) for pair in options.column))
