"""Random access to the rows of a source of any size, with 16 bytes of memory per row.

Lines of plain `.jsonl` files are found by their offsets. Other sources are first written as such lines to a file in the
temporary folder (TMPDIR), which is deleted when the process ends.
"""

from __future__ import annotations

import json
import tempfile
from array import array
from pathlib import Path
from typing import IO

from cascade_rl.rl_stages.core.hub import HUB
from cascade_rl.rl_stages.data.rows import Row, data_files, parse_line, read_rows


class RowIndex:
    """The rows of one source, in its order. Reading one is a seek.

    `[number]` returns the location and the row, as `read_rows` does, and raises UserError as it does. A line is parsed
    only when it is read.
    """

    def __init__(self, source: str) -> None:
        self.files: list[IO[bytes]] = []
        self.names: list[str] = []
        self.starts, self.places = array("q"), array("q")  # byte offset; file << 40 | line number in the file
        files = [] if source.startswith(HUB) else data_files(source)
        if files and all(path.suffix == ".jsonl" for path in files):
            for path in files:
                self._index(path)
        else:
            self._write_out(source)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, number: int) -> tuple[str, Row]:
        file, place = divmod(self.places[number], 1 << 40)
        lines = self.files[0 if len(self.files) == 1 else file]
        lines.seek(self.starts[number])
        where = f"{self.names[file]}:{place}"
        return where, parse_line(lines.readline(), where)

    def _index(self, path: Path) -> None:
        lines = path.open("rb")
        offset = 0
        for number, line in enumerate(lines, start=1):
            if not line.isspace():
                self._add(offset, len(self.files), number)
            offset += len(line)
        self.files.append(lines)
        self.names.append(str(path))

    def _write_out(self, source: str) -> None:
        lines = tempfile.TemporaryFile(prefix="cascade-rows-")  # noqa: SIM115 (open as long as the index)
        for where, row in read_rows(source):
            name, _, number = where.rpartition(":")
            if name not in self.names[-1:]:
                self.names.append(name)
            self._add(lines.tell(), len(self.names) - 1, int(number))
            lines.write(json.dumps(row).encode() + b"\n")
        self.files.append(lines)

    def _add(self, offset: int, file: int, number: int) -> None:
        self.starts.append(offset)
        self.places.append(file << 40 | number)
