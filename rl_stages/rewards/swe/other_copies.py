"""What no box of a repository may show: other copies of its packages, which contain the repair and the hidden tests.

A box cannot do without pytest and what pytest imports. So there are no tasks of these packages.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import PurePosixPath

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.rewards.swe.repository import CONFIGURATION, Repository
from cascade_rl.rl_stages.sandbox.walls.copies import Modules

NEEDED_BY_PYTEST = frozenset(("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments"))
SOURCES = ("", "src", "lib")  # folders of a repository that hold modules without a package


def other_copies(repository: Repository) -> Modules:
    """The packages and modules of a repository for `Sandbox.folder` to hide, without those that pytest needs."""
    return {path: names for path, names in _modules(repository).items() if _name(path) not in NEEDED_BY_PYTEST}


def require_hideable(repository: Repository) -> None:
    """Raises UserError if the repository has a package that pytest needs."""
    if needed := sorted({_name(path) for path in _modules(repository)} & NEEDED_BY_PYTEST):
        raise UserError(
            f"expected a repository that a box need not show; found {needed[0]!r}, which pytest needs there: an "
            "agent could read the repair. Choose another one"
        )


def _modules(repository: Repository) -> Modules:
    """Outermost packages, and modules outside of them, by path. A package has the names of the modules in it."""
    folders: dict[str, list[str]] = defaultdict(list)
    for path in (*repository.files, *repository.tests):
        if path.endswith(".py"):
            folder, _, name = path.rpartition("/")
            folders[folder].append(name)
    packages = {folder for folder, names in folders.items() if folder and "__init__.py" in names}
    outer = {each: folders[each] for each in packages if packages.isdisjoint(map(str, PurePosixPath(each).parents))}
    loose = [(folder, name) for folder in SOURCES for name in folders.get(folder, ()) if folder not in packages]
    single: dict[str, list[str]] = {
        f"{folder}/{name}".lstrip("/"): [] for folder, name in loose if name not in CONFIGURATION
    }
    return outer | single


def _name(path: str) -> str:
    return path.rpartition("/")[2].removesuffix(".py")
