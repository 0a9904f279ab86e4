"""Folders of text files in which commands run, each on one node.

The process of a node keeps the folders of each sandbox in one scratch folder. It is removed when that process ends or
the sandbox is closed.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from cascade_rl.engine.cluster.node import Node, NodeLost
from cascade_rl.rl_stages.sandbox import disk
from cascade_rl.rl_stages.sandbox.disk import Held
from cascade_rl.rl_stages.sandbox.errors import SandboxFailure
from cascade_rl.rl_stages.sandbox.outside.scratch import Scratch
from cascade_rl.rl_stages.sandbox.walls.copies import Modules, copies

MAX_FILE_BYTES = 1 << 20
EMPTY = Held()
_ANY = Held(1 << 62, 1 << 62)


class Folder:
    """A folder on `node`. A context manager that removes it at the end. Commands in it cannot read the node's paths
    `hidden`. `first`: what it held before any command."""

    def __init__(self, node: Node, path: Path, first: Held = EMPTY, hidden: Sequence[str] = ()) -> None:
        self.node, self.path, self.first, self.hidden = node, path, first, hidden

    @classmethod
    def made(cls, node: Node, sandbox: str, files: Mapping[str, str], hidden: Modules) -> Self:
        """A new folder with these files, as text by relative path. Raises OSError, for instance if the disk is full,
        and SandboxFailure."""
        with _failing(node):
            paths = node.call(copies, dict(hidden)) if hidden else ()
            return cls(node, *node.call(make_folder, sandbox, dict(files)), paths)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def texts(self, paths: Sequence[str]) -> dict[str, str]:
        """The current text of these files. Links and files that are not text are left out. Raises SandboxFailure."""
        with _failing(self.node):
            return self.node.call(read_texts, self.path, list(paths))

    def close(self) -> None:
        """Removes the folder. Can be called more than once."""
        with suppress(NodeLost):  # the folder was lost with its node
            self.node.call(disk.remove, self.path)


@contextmanager
def _failing(node: Node) -> Iterator[None]:
    try:
        yield
    except NodeLost as lost:
        raise SandboxFailure(f"no folder on {node.host}: {lost}") from lost


_places: dict[str, Scratch] = {}


def make_folder(sandbox: str, files: Mapping[str, str]) -> tuple[Path, Held]:
    """A new folder of this process, and what it holds. Raises OSError and then leaves no folder."""
    place = _places.setdefault(sandbox, Scratch())
    folder = Path(tempfile.mkdtemp(dir=place.folder()))
    try:
        write_files(folder, files)
        return folder, disk.held([folder], _ANY)
    except OSError:
        disk.remove(folder)
        raise


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    for path, text in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text.encode())


def read_texts(folder: Path, paths: Sequence[str]) -> dict[str, str]:
    """Text by path, without the files for which `_text` returns None."""
    found = {path: _text(folder, path) for path in paths}
    return {path: text for path, text in found.items() if text is not None}


def remove_folders(sandbox: str) -> None:
    """Removes all folders that this process has made for a sandbox."""
    if place := _places.pop(sandbox, None):
        place.close()


def _text(folder: Path, path: str) -> str | None:
    """The text of a file. None if it is missing, a link, too large, not text, or if the agent made it unreadable.

    A link that an agent made must not show the grader files from outside its box, nor keep it.
    """
    try:
        with open(_opened(folder, path), "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_FILE_BYTES:
                return None
            return file.read().decode()
    except (OSError, UnicodeDecodeError):
        return None


def _opened(folder: Path, path: str) -> int:
    """Descriptor of a file that is reached without links. Does not wait for the other end of a named pipe."""
    *above, name = Path(path).parts
    place = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        for part in above:
            inner = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=place)
            os.close(place)
            place = inner
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=place)
    finally:
        os.close(place)
