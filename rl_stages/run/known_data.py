"""What was found out about data files that are still what they were: they are read at the first launch, not at each.

    inputs.json   {what: {source: {"files": [[path, size, mtime_ns], ...], "found": anything that JSON has}}}

A file is what it was where its path, its size and its time of change are. One that was changed within GRAIN_S of being
read is read again: a second change in the same tick of the file system's clock would not be seen. What has no files,
such as generated data, is found anew at each launch.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cascade_rl.rl_stages.config.source import Source
from cascade_rl.rl_stages.run.durable_file import read_json, write_json

GRAIN_S = 2.0  # of FAT's clock, the coarsest that is in use

Known = dict[str, dict[str, Any]]


@dataclass
class KnownData:
    """What an earlier launch left, and what this one has asked for, which is all that it leaves."""

    earlier: Known = field(default_factory=dict)
    asked: Known = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> "KnownData":
        return cls(read_json(path) if path.exists() else {})

    def write(self, path: Path) -> None:
        settled = {
            what: {source: entry for source, entry in entries.items() if entry["files"]}
            for what, entries in self.asked.items()
        }
        write_json(path, settled)

    def recall[T](self, what: str, source: str, find: Callable[[str], T]) -> T:
        """`find(source)`, or what it was when the source's files were last read. Raises what `find` raises."""
        asked = self.asked.setdefault(what, {})
        if source not in asked:
            files, earlier = _files(source), self.earlier.get(what, {}).get(source)
            known = earlier if files and earlier and earlier["files"] == files else None
            asked[source] = known or {"files": files, "found": find(source)}
        found: T = asked[source]["found"]
        return found


def _files(source: str) -> list[list[Any]]:
    """None where one may change unseen."""
    path = Path(Source.parse(source).path)
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    stats = [(file, file.stat()) for file in files if file.is_file()]
    settled = all(time.time() - stat.st_mtime > GRAIN_S for _, stat in stats)
    return [[str(file.absolute()), stat.st_size, stat.st_mtime_ns] for file, stat in stats] if settled else []
