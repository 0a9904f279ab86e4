"""Files that survive a kill at any point: files that are replaced atomically, and logs of JSON lines.

Guarantees: a reader never sees half a file or half a line. A line that a kill cut off is dropped when the log is next
read or written.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

_APPENDING = Lock()


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace `path` atomically: write a temporary file next to it, sync it, rename it."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Make the bytes of a file, or the renames inside a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def write_json(path: Path, value: Any) -> None:
    """Raises ValueError for NaN and infinity, as `JsonLines.append` does: neither jq nor a browser reads them."""
    write_atomically(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


@dataclass(frozen=True)
class JsonLines:
    """An append-only log with one JSON object per line. One process at a time writes it, and any thread of that.

    A row is on disk when `append` returns. So a checkpoint that is written later never outlives the rows that a stage
    needs to resume from it, even after a power failure.
    """

    path: Path

    def append(self, row: Mapping[str, Any]) -> None:
        """Add one line. NumPy and torch numbers become plain numbers.

        Raises ValueError for NaN and infinity.
        """
        line = json.dumps(row, default=float, allow_nan=False) + "\n"
        with _APPENDING, self.path.open("ab+") as file:
            kept = _whole_lines(file.seek(0, os.SEEK_END), self.path)
            file.truncate(kept)
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())
        if not kept:
            sync(self.path.parent)  # the file may be new

    def rows(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        lines = self.path.read_bytes().split(b"\n")
        return [json.loads(line) for line in lines[:-1]]

    def keep(self, wanted: Callable[[dict[str, Any]], bool]) -> None:
        """Drop the rows that are not wanted. The others stay byte for byte the same."""
        if self.path.exists():
            lines = self.path.read_bytes().split(b"\n")[:-1]
            write_atomically(self.path, b"".join(line + b"\n" for line in lines if wanted(json.loads(line))))


def _whole_lines(size: int, path: Path) -> int:
    """Number of bytes up to the last line end, given the size of the file."""
    if size == 0:
        return 0
    with path.open("rb") as file:
        file.seek(size - 1)
        if file.read(1) == b"\n":
            return size
    return path.read_bytes().rfind(b"\n") + 1
