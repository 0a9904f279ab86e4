"""NVIDIA's workplace tables, read from the folder that CASCADE_NEMO_GYM names, else from the installed nemo-gym.

The folder is an unpacked wheel, or holds other tables in the same layout. The package is located but not imported, so
its requirements need not be installed.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.environments.office import Record, Tables

VARIABLE = "CASCADE_NEMO_GYM"
FOLDER = Path("resources_servers/workplace_assistant/csv_data")

EMAIL, CALENDAR, TASKS, CUSTOMERS = "email", "calendar", "project_management", "customer_relationship_manager"
DIRECTORY, VISITS, PLOTS = "directory", "visits", "plots"
FILES = {
    EMAIL: ("processed/emails.csv", "email_id"),
    CALENDAR: ("processed/calendar_events.csv", "event_id"),
    TASKS: ("processed/project_tasks.csv", "task_id"),
    CUSTOMERS: ("processed/customer_relationship_manager_data.csv", "customer_id"),
}
"""Table -> its file and the name of its id column."""
VISITS_FILE, DIRECTORY_FILE = "processed/analytics_data.csv", "raw/email_addresses.csv"

EXPECTED = (
    "expected NVIDIA's workplace tables, which a row without 'initial_state' needs, in an installed nemo-gym or in the "
    f"folder that {VARIABLE} names"
)
REMEDY = f"Run `make published` and set {VARIABLE}=build/published, or `pip install --no-deps nemo-gym==0.4.0`"


def start() -> Tables:
    """The tables at the start of every episode. UserError if nemo-gym is not found or lacks a table."""
    folder = os.environ.get(VARIABLE) or _installed()
    if folder is None:
        raise UserError(f"{EXPECTED}; found neither. {REMEDY}")
    return _read(Path(folder) / FOLDER)


def _installed() -> Path | None:
    """The folder that holds the package nemo_gym and, next to it, `resources_servers`."""
    spec = find_spec("nemo_gym")
    return Path(spec.origin).parents[1] if spec and spec.origin else None


@cache
def _read(folder: Path) -> Tables:
    with_ids = {name: {row.pop(key): row for row in _rows(folder / file)} for name, (file, key) in FILES.items()}
    visits, directory = _rows(folder / VISITS_FILE), _rows(folder / DIRECTORY_FILE, ["email"])
    return {**with_ids, VISITS: _numbered(visits), DIRECTORY: _numbered(directory), PLOTS: {}}


def _rows(file: Path, columns: Sequence[str] | None = None) -> list[dict[str, str]]:
    """The rows of a CSV file. `columns` names the columns of a file without a header."""
    try:
        with file.open(newline="", encoding="utf-8") as lines:
            return list(csv.DictReader(lines, columns))
    except OSError as error:
        raise UserError(f"{EXPECTED}; found no readable '{file}' ({error.strerror}). {REMEDY}") from None


def _numbered(rows: Sequence[Record]) -> dict[str, Record]:
    return {str(number): row for number, row in enumerate(rows)}
