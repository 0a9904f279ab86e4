"""Caches the checks of data files, so that only the first launch reads them.

    inputs.json   {what: {source: {"files": [[path, size, mtime_ns], ...], "found": any JSON value}}}

A file counts as unchanged if its path, size and modification time are the same. A file that was modified less than
GRAIN_S before it was read is read again at the next launch, because a second change in the same tick of the file
system's clock would go unnoticed. Data of the Hub are unchanged as long as their commit is. Sources without files, such
as generated data, are checked at each launch.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cascade_rl.rl_stages.config.source import Source
from cascade_rl.rl_stages.core.hub import HUB, HubSource
from cascade_rl.rl_stages.run.durable_file import read_json, write_json

GRAIN_S = 2.0  # seconds; the resolution of FAT, the coarsest file system in use

Known = dict[str, dict[str, Any]]


@dataclass
class KnownData:
    """The results of an earlier launch, and those that this launch asked for. Only the latter are written."""

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
        """`find(source)`, or its cached result if the source's files are unchanged. Raises what `find` raises."""
        asked = self.asked.setdefault(what, {})
        if source not in asked:
            files, earlier = _files(source), self.earlier.get(what, {}).get(source)
            known = earlier if files and earlier and earlier["files"] == files else None
            asked[source] = known or {"files": files, "found": find(source)}
        found: T = asked[source]["found"]
        return found


def _files(source: str) -> list[list[Any]]:
    """The files with size and time; empty if one of them could change unnoticed."""
    name = Source.parse(source).path
    if name.startswith(HUB):
        return [[name, HubSource.parse(name).commit]]
    path = Path(name)
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    stats = [(file, file.stat()) for file in files if file.is_file()]
    settled = all(time.time() - stat.st_mtime > GRAIN_S for _, stat in stats)
    return [[str(file.absolute()), stat.st_size, stat.st_mtime_ns] for file, stat in stats] if settled else []
