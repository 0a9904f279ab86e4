"""Folders that untrusted code fills: what they hold, and their removal, whatever their depth and modes."""

from __future__ import annotations

import os
import re
import stat
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cascade_rl.rl_stages.sandbox.process_tree import as_owner_of

_MAX_DEPTH = 100
_DELETED = re.compile(rb":[0-9a-f]+ (\d+) [^\n]* \(deleted\)\n")
_ENTER = 0o500  # of the owner: read and search
_REMOVE = 'rm -rf -- "$0" || { chmod -R u+rwX -- "$0"; rm -rf -- "$0"; }'


class Overfull(Exception):
    """Folders hold more than they may."""


@dataclass(frozen=True)
class Held:
    """Bytes on disk, and files and folders together."""

    bytes: int = 0
    entries: int = 0


def held(folders: Sequence[str | Path], most: Held, nameless_bytes: int = 0) -> Held:
    """What is below these folders. Raises Overfull if it is more than `most`, or nested too deeply.

    Their owner gets access to each folder. What vanishes meanwhile counts as nothing. `nameless_bytes` count too.
    """
    count = _Count(most, nameless_bytes)
    for folder in folders:
        count.add(os.fspath(folder), None, 0)
    return Held(count.bytes, count.entries)


def nameless(processes: Iterable[int], mapped_bytes: int) -> int:
    """Bytes of the files without a name that processes have open or, each of at most `mapped_bytes`, only mapped.

    Raises Overfull if a process hides its files.
    """
    opened: dict[int, int] = {}
    mapped: set[int] = set()
    for thread in (thread for pid in processes for thread in _threads(pid)):  # each may have files of its own
        try:
            with as_owner_of(thread):
                opened |= _opened(thread)
                mapped |= _mapped(thread)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        except PermissionError:
            if not _ended(thread):
                raise Overfull(f"a process that hides its files ({thread})") from None
    return sum(opened.values()) + mapped_bytes * len(mapped - opened.keys())


def remove(folder: Path) -> None:
    """Removes a folder of this user. `shutil.rmtree` recurses, and stops at a folder whose mode its owner took away."""
    subprocess.run(["/bin/sh", "-c", _REMOVE, folder], env={}, stderr=subprocess.DEVNULL, check=False)


def _threads(pid: int) -> list[str]:
    with suppress(FileNotFoundError, ProcessLookupError):
        return [f"/proc/{pid}/task/{thread}" for thread in os.listdir(f"/proc/{pid}/task")]
    return []


def _ended(thread: str) -> bool:
    """Whether it has given back its memory, after which what is in /proc is root's."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"{thread}/statm").read_text().startswith("0 ")
    return True


def _opened(thread: str) -> dict[int, int]:
    """Bytes by inode."""
    found = {}
    for descriptor in os.listdir(f"{thread}/fd"):
        with suppress(FileNotFoundError):
            file = os.stat(f"{thread}/fd/{descriptor}")
            if stat.S_ISREG(file.st_mode) and not file.st_nlink:
                found[file.st_ino] = file.st_blocks * 512
    return found


def _mapped(thread: str) -> set[int]:
    """Inodes."""
    return {int(inode) for inode in _DELETED.findall(Path(f"{thread}/maps").read_bytes())}


class _Count:
    def __init__(self, most: Held, nameless_bytes: int) -> None:
        self.bytes, self.entries, self._most = nameless_bytes, 0, most
        self._check()

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
        self._check()
        if entry.is_dir(follow_symlinks=False):
            self.add(entry.name, folder, depth + 1)

    def _check(self) -> None:
        if self.bytes > self._most.bytes:
            raise Overfull(f"more than {self._most.bytes >> 20} MiB")
        if self.entries > self._most.entries:
            raise Overfull(f"more than {self._most.entries} files and folders")


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
