"""Folders that untrusted code fills: what they hold, and their removal, whatever their depth and modes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_MAX_DEPTH = 100
_ENTER = 0o500  # of the owner: read and search
_REMOVE = 'rm -rf -- "$0" || { chmod -R u+rwX -- "$0"; rm -rf -- "$0"; }'


class Overfull(Exception):
    """Folders hold more than they may."""


@dataclass(frozen=True)
class Held:
    """Bytes on disk, and files and folders together."""

    bytes: int = 0
    entries: int = 0


def held(folders: Sequence[str | Path], most: Held) -> Held:
    """What is below these folders. Raises Overfull if it is more than `most`, or nested too deeply.

    Their owner gets access to each folder. What vanishes meanwhile counts as nothing.
    """
    count = _Count(most)
    for folder in folders:
        count.add(os.fspath(folder), None, 0)
    return Held(count.bytes, count.entries)


def remove(folder: Path) -> None:
    """Removes a folder of this user. `shutil.rmtree` recurses, and stops at a folder whose mode its owner took away."""
    subprocess.run(["/bin/sh", "-c", _REMOVE, folder], env={}, stderr=subprocess.DEVNULL, check=False)


class _Count:
    def __init__(self, most: Held) -> None:
        self.bytes, self.entries, self._most = 0, 0, most

    def add(self, name: str, parent: int | None, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise Overfull(f"folders nested more than {_MAX_DEPTH} deep")
        try:
            folder = _entered(name, parent)
        except (FileNotFoundError, NotADirectoryError):
            return
        try:
            for entry in os.scandir(folder):
                self._add_entry(entry, folder, depth)
        finally:
            os.close(folder)

    def _add_entry(self, entry: os.DirEntry[str], folder: int, depth: int) -> None:
        self.entries += 1
        try:
            self.bytes += entry.stat(follow_symlinks=False).st_blocks * 512
        except FileNotFoundError:
            return
        if self.bytes > self._most.bytes:
            raise Overfull(f"more than {self._most.bytes >> 20} MiB")
        if self.entries > self._most.entries:
            raise Overfull(f"more than {self._most.entries} files and folders")
        if entry.is_dir(follow_symlinks=False):
            self.add(entry.name, folder, depth + 1)


def _entered(name: str, parent: int | None) -> int:
    """Descriptor of a folder. Through a descriptor alone, since a name may become a link while one looks at it."""
    path = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    try:
        mode = os.fstat(path).st_mode
        if mode & _ENTER != _ENTER:
            os.chmod(f"/proc/self/fd/{path}", mode & 0o7777 | 0o700)
        return os.open(f"/proc/self/fd/{path}", os.O_RDONLY | os.O_DIRECTORY)
    finally:
        os.close(path)
