"""The copies of a package that a box could read, of any version: installed, vendored, cached, checked out.

An agent that repairs a package must not find its repaired code.
"""

from __future__ import annotations

import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from threading import Lock

from cascade_rl.rl_stages.sandbox.walls import archives, interpreter

Modules = Mapping[str, Sequence[str]]
"""Python packages and top-level modules by path in their repository, such as `src/pkg` or `six.py`. A package has the
names of the modules that lie directly in it."""

METADATA = (".dist-info", ".egg-info")
PROJECT = frozenset((".git", "pyproject.toml", "setup.py", "setup.cfg"))
DOWNLOADS = ("pip/http", "pip/http-v2")  # their files have names that tell nothing
FEWEST_IN_COMMON = 2

_walking = Lock()
_SUFFIX = re.compile(r"(\.cpython-[^.]*|\.abi3|\.opt-\d)*\.(py|pyc|pyi|so)$")


def copies(modules: Modules) -> tuple[str, ...]:
    """Real paths of all copies of `modules` below what every box may read, none below another.

    Python's own modules are not looked for. A package is found by its name where Python, pip or a checkout keeps
    packages and in archives, and elsewhere by the names of at least half of its modules. Archives that cannot be listed
    may hold any. The first call of a process walks all folders.
    """
    return _copies(tuple((path, frozenset(names)) for path, names in sorted(modules.items())))


@lru_cache(256)
def _copies(modules: Sequence[tuple[str, frozenset[str]]]) -> tuple[str, ...]:
    with _walking:  # threads that come at once would each walk
        machine = _machine()
    found = set(machine.opaque)
    for path, names in modules:
        if os.path.basename(path).removesuffix(".py") not in sys.stdlib_module_names:
            found.update(machine.copies(path, names))
    real = {os.path.realpath(path) for path in found if os.path.exists(path)}
    return tuple(sorted(path for path in real if real.isdisjoint(map(str, Path(path).parents))))


class Machine:
    """All folders below `roots`, those that hold packages, and archives. `opaque`: what may hold any package."""

    def __init__(self, roots: Sequence[str]) -> None:
        self._folders: dict[str, list[str]] = defaultdict(list)
        self._homes: set[str] = set()
        self._modules: dict[str, list[str]] = defaultdict(list)
        self._archives: dict[str, list[str]] = defaultdict(list)
        self._metadata: dict[str, list[str]] = defaultdict(list)
        self.opaque: list[str] = []
        for folder, folders, files in _walk(roots):
            self._add(folder, folders, files)

    def copies(self, path: str, names: frozenset[str]) -> Iterator[str]:
        """Copies of one package or module, with its metadata and archives."""
        *_, name = parts = path.removesuffix(".py").split("/")
        if path.endswith(".py"):
            yield from self._modules[name]
        for folder in self._folders[name]:
            if self._is_home(Path(folder), parts) or _alike(folder, names):
                yield _checkout(folder)
        yield from self._metadata[name]
        yield from self._archives[name]

    def _add(self, folder: str, folders: Sequence[str], files: Sequence[str]) -> None:
        for name in folders:
            self._folders[name].append(f"{folder}/{name}")
        for name in files:
            if name.endswith((*archives.ZIPS, *archives.OTHERS)):
                self._add_archive(f"{folder}/{name}")
        if folder.endswith(DOWNLOADS):
            self.opaque.append(folder)
        metadata = [name for name in (*folders, *files) if name.endswith(METADATA)]
        if metadata or PROJECT & {*folders, *files} or _holds_packages(os.path.basename(folder)):
            self._homes.add(folder)
            self._add_home(folder, files, metadata)

    def _add_archive(self, path: str) -> None:
        parts = archives.parts(path)
        if parts is None:
            self.opaque.append(path)
        for name in {_SUFFIX.sub("", part) for part in parts or ()}:
            self._archives[name].append(path)

    def _add_home(self, folder: str, files: Sequence[str], metadata: Sequence[str]) -> None:
        cached = f"{folder}/__pycache__"
        found = [f"{folder}/{name}" for name in files] + [entry.path for entry in _entries(cached)]
        for path in filter(_SUFFIX.search, found):
            self._modules[_SUFFIX.sub("", os.path.basename(path))].append(path)
        for name in metadata:
            for module in _modules_of(Path(folder, name)) | {_distribution(name)}:
                self._metadata[module].append(f"{folder}/{name}")

    def _is_home(self, folder: Path, parts: Sequence[str]) -> bool:
        """Whether the folder is where this package would be below a folder that holds packages."""
        ends = (index for index in range(1, len(parts) + 1) if folder.parts[-index:] == tuple(parts[-index:]))
        above = [folder.parents[index - 1] for index in ends]
        above += [each.parent for each in above if each.name == "src"]
        return any(str(each) in self._homes for each in above)


@cache
def _machine() -> Machine:
    return Machine(interpreter.readable())


def _walk(roots: Sequence[str]) -> Iterator[tuple[str, list[str], list[str]]]:
    """Every folder once, with its folders and files. A link to a folder is listed and not followed."""
    seen: set[str] = set()
    left = [os.path.realpath(root) for root in roots]
    while left:
        folder = left.pop()
        if folder in seen:
            continue
        seen.add(folder)
        entries = _entries(folder)
        folders = [entry for entry in entries if entry.is_dir()]
        left += [entry.path for entry in folders if not entry.is_symlink()]
        yield folder, [entry.name for entry in folders], [entry.name for entry in entries if not entry.is_dir()]


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """None for a folder that is missing or closed: a box cannot read it either."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _holds_packages(name: str) -> bool:
    return name in ("site-packages", "dist-packages") or "vendor" in name or "third_party" in name


def _alike(folder: str, names: frozenset[str]) -> bool:
    known = names - {"__init__.py"}
    common = known & {entry.name for entry in _entries(folder)}
    return len(common) >= max(FEWEST_IN_COMMON, len(known) / 2)


def _checkout(folder: str) -> str:
    """The folder of the version history that a package has; without one, the package itself."""
    above = Path(folder).parents[:2]
    return next((str(parent) for parent in above if (parent / ".git").exists()), folder)


def _modules_of(metadata: Path) -> set[str]:
    """The top-level modules of an installed distribution."""
    for name in ("top_level.txt", "RECORD"):
        try:
            lines = (metadata / name).read_text(errors="replace").splitlines()
        except OSError:
            continue
        return {line.partition(",")[0].partition("/")[0].removesuffix(".py") for line in lines}
    return set()


def _distribution(name: str) -> str:
    """`Catalogue-2.0.10.dist-info` as `catalogue`."""
    return re.sub(r"[-_.]+", "_", re.split(r"-\d|\.(?:dist|egg)-info$|-py3", name)[0]).lower()
