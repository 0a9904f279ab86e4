"""Folders of text files in which commands run, each on one node.

The process of a node keeps the folders of each sandbox in one scratch folder. It is removed when that process ends or
the sandbox is closed.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from cascade_rl.engine.cluster.node import Node, NodeLost
from cascade_rl.rl_stages.sandbox.errors import SandboxFailure
from cascade_rl.rl_stages.sandbox.outside.scratch import Scratch
from cascade_rl.rl_stages.sandbox.walls.copies import Modules, copies

MAX_FILE_BYTES = 1 << 20


class Folder:
    """A folder on `node`. A context manager that removes it at the end. Commands in it cannot read the node's paths
    `hidden`."""

    def __init__(self, node: Node, path: Path, hidden: Sequence[str] = ()) -> None:
        self.node, self.path, self.hidden = node, path, hidden

    @classmethod
    def made(cls, node: Node, sandbox: str, files: Mapping[str, str], hidden: Modules) -> Self:
        """A new folder with these files, as text by relative path. Raises OSError, for instance if the disk is full,
        and SandboxFailure."""
        with _failing(node):
            paths = node.call(copies, dict(hidden)) if hidden else ()
            return cls(node, node.call(make_folder, sandbox, dict(files)), paths)

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
            self.node.call(remove_folder, self.path)


@contextmanager
def _failing(node: Node) -> Iterator[None]:
    try:
        yield
    except NodeLost as lost:
        raise SandboxFailure(f"no folder on {node.host}: {lost}") from lost


_places: dict[str, Scratch] = {}


def make_folder(sandbox: str, files: Mapping[str, str]) -> Path:
    """A new folder of this process. Raises OSError and then leaves no folder."""
    place = _places.setdefault(sandbox, Scratch())
    folder = Path(tempfile.mkdtemp(dir=place.folder()))
    try:
        write_files(folder, files)
    except OSError:
        remove_folder(folder)
        raise
    return folder


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    for path, text in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text.encode())


def read_texts(folder: Path, paths: Sequence[str]) -> dict[str, str]:
    """Text by path, without the files for which `_text` returns None."""
    found = {path: _text(folder, path) for path in paths}
    return {path: text for path, text in found.items() if text is not None}


def remove_folder(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def remove_folders(sandbox: str) -> None:
    """Removes all folders that this process has made for a sandbox."""
    if place := _places.pop(sandbox, None):
        place.close()


def _text(folder: Path, path: str) -> str | None:
    """The text of a file. None if it is missing, a link, too large, or not text.

    A link that an agent made must not show the grader files from outside its box.
    """
    file = folder / path
    if file.resolve() != folder.resolve() / path or not file.is_file() or file.stat().st_size > MAX_FILE_BYTES:
        return None
    try:
        return file.read_bytes().decode()
    except (OSError, UnicodeDecodeError):
        return None  # the agent made it unreadable, or it is not text
