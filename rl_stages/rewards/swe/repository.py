"""A repository as text: the files that an agent sees, and the tests that are added only for grading."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath
from typing import Any, Self

from cascade_rl.engine.core.errors import UserError

Files = Mapping[str, str]

CONFIGURATION = frozenset(("conftest.py", "setup.py", "sitecustomize.py", "usercustomize.py", "noxfile.py"))
SNAPSHOTS_IN_MEMORY = 8


@dataclass(frozen=True)
class Repository:
    """`files` and `tests` map paths, relative and with slashes, to text. No path is in both."""

    files: Files
    tests: Files

    @classmethod
    def of(cls, paths: Files) -> Self:
        """All files of a checkout. `is_test` decides which of them are tests."""
        tests = {path: text for path, text in paths.items() if is_test(path)}
        return cls({path: text for path, text in paths.items() if path not in tests}, tests)

    def changed(self, files: Files) -> Self:
        """A copy with the new text of `files`. The tests stay the same."""
        return replace(self, files={**self.files, **files})

    def with_other(self, tests: Files) -> Self:
        """A copy with other text in some of its tests."""
        return replace(self, tests={**self.tests, **tests})

    @property
    def with_tests(self) -> Files:
        return {**self.files, **self.tests}

    def as_json(self) -> str:
        return json.dumps({"files": self.files, "tests": self.tests}, sort_keys=True)


def is_test(path: str) -> bool:
    """Whether the path is a test module, is in a folder of tests, or is a conftest.py."""
    parts = PurePosixPath(path).parts
    name = parts[-1]
    in_tests = any(part in ("test", "tests", "testing") for part in parts[:-1])
    return in_tests or name == "conftest.py" or name.startswith("test_") or name.endswith("_test.py")


def can_be_patched(path: str) -> bool:
    """Whether a patch may change the path: Python source that is no test, and that neither Python, pytest nor a build
    reads before the tests run."""
    return path.endswith(".py") and not is_test(path) and PurePosixPath(path).name not in CONFIGURATION


def checked_files(value: Any, name: str) -> dict[str, str]:
    """`value` as text by path. Raises UserError if it is anything else, or if a path leaves the repository."""
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise UserError(f"expected {name!r} to be {{path: text}}; found {str(value)[:80]!r}")
    for path in value:
        parts = path.split("/")
        if "\\" in path or "\0" in path or any(part in ("", ".", "..") for part in parts):
            raise UserError(f"expected {name!r} to have relative paths such as 'pkg/a.py'; found {path!r}")
    return dict(value)


def load_snapshot(value: Any) -> Repository:
    """The repository of a row's `repo_snapshot`.

    It is {"files", "tests"}, each as text by path, or {"path", "sha256"} of a JSON file that contains these.
    """
    if isinstance(value, dict) and value.keys() == {"path", "sha256"}:
        return _stored(str(value["path"]), str(value["sha256"]))
    if not isinstance(value, dict) or value.keys() != {"files", "tests"}:
        form = '{"files": {path: text}, "tests": {path: text}} or {"path": text, "sha256": text}'
        raise UserError(f"expected 'repo_snapshot' to be {form}; found {str(value)[:80]!r}")
    return Repository(checked_files(value["files"], "files"), checked_files(value["tests"], "tests"))


@lru_cache(SNAPSHOTS_IN_MEMORY)
def _stored(path: str, sha256: str) -> Repository:
    if not Path(path).is_file():  # nor a device: a row may name any
        raise UserError(f"expected a snapshot at {path}; found no file: make the tasks again")
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"expected a snapshot at {path} that can be read; {error.strerror}: change its mode") from None
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise UserError(f"{path}: expected a snapshot with sha256 {sha256}; found {found}: make the tasks again")
    return load_snapshot(json.loads(content))


def read_folder(folder: Path) -> Files:
    """Every text file below `folder`, except in __pycache__ and .git."""
    found = {}
    for file in sorted(folder.rglob("*")):
        path = file.relative_to(folder)
        if file.is_symlink() or not file.is_file() or {"__pycache__", ".git"} & set(path.parts):
            continue
        try:
            found[path.as_posix()] = file.read_bytes().decode()
        except UnicodeDecodeError:
            continue  # not text, so it can be neither shown nor patched
    return found


def installed_package(name: str) -> Repository:
    """The files of an installed distribution. Raises UserError unless it is installed, pure Python and has tests."""
    try:
        found = distribution(name)
    except PackageNotFoundError:
        raise UserError(f"expected an installed distribution; found no {name!r}: install it first") from None
    paths = [file for file in found.files or () if ".dist-info" not in str(file) and ".." not in file.parts]
    if compiled := [str(file) for file in paths if file.suffix in (".so", ".pyd")]:
        raise UserError(f"{name}: expected pure Python; found {compiled[0]}")
    roots = {file.parts[0] for file in paths}
    base = Path(str(found.locate_file("")))
    files = {path: text for path, text in read_package(base, roots).items() if path.endswith((".py", ".json", ".txt"))}
    repository = Repository.of(files)
    if not repository.tests:
        raise UserError(f"{name}: expected tests inside the package; found none: choose one that installs its tests")
    return repository


def read_package(base: Path, roots: set[str]) -> Files:
    """The text files of `roots`, which are modules and packages in the folder `base`."""
    found: dict[str, str] = {}
    for root in sorted(roots):
        if (base / root).is_dir():
            found |= {f"{root}/{path}": text for path, text in read_folder(base / root).items()}
        elif (base / root).is_file():
            found[root] = (base / root).read_text()
    return found
