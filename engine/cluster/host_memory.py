"""How much memory this process can still take on its node."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path("/")


class Files(NamedTuple):
    """Where a version of cgroups tells the memory of a group: the mark of its line in /proc/self/cgroup, its folder,
    its files, and the name of the page cache in memory.stat."""

    mark: str
    folder: str
    limit: str
    used: str
    cache: str


VERSIONS = (
    Files("::", "sys/fs/cgroup", "memory.max", "memory.current", "file"),
    Files(":memory:", "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache"),
)


def available_bytes(root: Path = ROOT) -> int:
    """What Linux says is available, or what the memory limits of a job or container leave of it.

    root  where /proc and /sys are
    """
    lines = dict(line.split(":", 1) for line in (root / "proc/meminfo").read_text().splitlines())
    return min([int(lines["MemAvailable"].split()[0]) * 1024, *_below_limits(root)])


def _below_limits(root: Path) -> Iterator[int]:
    """Bytes left below each limit on this process. Page cache counts as left, since it makes room."""
    for files in VERSIONS:
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, mark, name = line.partition(files.mark)
            own = Path(name.lstrip("/"))
            for group in (own, *own.parents) if mark else ():
                yield from _left(root / files.folder / group, files)


def _left(group: Path, files: Files) -> Iterator[int]:
    if not (group / files.limit).exists() or (limit := (group / files.limit).read_text().strip()) == "max":
        return
    cached = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())[files.cache]
    yield int(limit) - int((group / files.used).read_text()) + int(cached)
