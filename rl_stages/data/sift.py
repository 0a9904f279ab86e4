"""Writes the rows that pass a rule to one JSONL file, and reports what was dropped and why, with examples."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.data.rows import Row
from cascade_rl.rl_stages.run.durable_file import sync

Rule = Callable[[Row], str | None]  # why a row is dropped; None if it is kept
EXAMPLES = 3  # of each reason


@dataclass
class Report:
    """Rows kept by source or domain, rows dropped by reason, and the first rows dropped for each reason."""

    kept: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return self.kept.total() + self.dropped.total()

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return {"kept": self.kept, "dropped": self.dropped, "examples": self.examples}

    def drop(self, reason: str, example: str) -> None:
        self.dropped[reason] += 1
        kept = self.examples.setdefault(reason, [])
        if len(kept) < EXAMPLES:
            kept.append(example)

    def refuse(self, where: str, error: UserError) -> None:
        """Drops the row at `where`. Rows with the same fault share a reason: what was expected, without positions."""
        message = str(error).removeprefix(f"{where}: ")
        expected, semicolon, found = message.partition("; found")
        reason = re.sub(r"\[\d+\]", "[]", expected)
        self.drop(reason, f"{where}: found{found}" if semicolon else f"{where}: {message}")


def sift(rows: Iterable[tuple[str, Row]], rule: Rule, out: Path) -> Report:
    """Writes the rows that `rule` keeps. If it cannot judge one: UserError with file and line, and no file."""
    report = Report()
    with replacing(out) as file:
        for where, row in rows:
            try:
                reason = rule(row)
            except UserError as error:
                raise UserError(f"{where}: {error}") from None
            if reason is None:
                report.kept[where.rpartition(":")[0]] += 1
                file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
            else:
                report.drop(reason, f"{where}: {json.dumps(row, ensure_ascii=False)}")
    return report


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A temporary file that replaces `path` atomically when the block ends without an error."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)
