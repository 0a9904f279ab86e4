"""How a worker that runs as root makes this Python and a workspace accessible to an unprivileged user.

Root's home is usually closed to other users and may contain the interpreter. A workspace may lie below a closed
folder. So the worker creates its own mount namespace. There it covers such a home with a folder that contains only the
interpreter.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cascade_rl.rl_stages.sandbox import disk

_CLONE_NEWNS = 0x20000
_MS_BIND, _MS_REC, _MS_PRIVATE, _MNT_DETACH = 4096, 16384, 1 << 18, 2
_O_PATH = 0o10000000
_STAGE = Path("/mnt")
_libc = ctypes.CDLL(None, use_errno=True)


def slot_user() -> int | None:
    """A user id for the boxes of this process. None if this process is not root or has no other user id to give.

    The kernel applies no process limit to root.
    """
    first, _, count = map(int, Path("/proc/self/uid_map").read_text().split()[:3])
    if os.geteuid() != 0 or count == 1:
        return None
    last = min(first + count, 1 << 31) - 2
    return last - os.getpid() % max(1, count // 16)


class HostView:
    """`user` runs the boxes and must be able to read `prefixes`. Raises PermissionError if that is impossible."""

    def __init__(self, user: int | None, prefixes: Sequence[str]) -> None:
        self.user = user
        self._covered: dict[Path, int] = {}
        self._mounts = user is not None and _libc.unshare(_CLONE_NEWNS) == 0
        if self._mounts:
            _mount(None, "/", None, _MS_REC | _MS_PRIVATE)
            self._cover([Path(prefix) for prefix in prefixes])
            _mount("sandbox", str(_STAGE), "tmpfs", 0, "mode=755")
        elif user is not None and (closed := [prefix for prefix in prefixes if _closed_ancestor(Path(prefix))]):
            raise PermissionError(f"{closed[0]} is closed to other users, and this root may not mount")

    @contextmanager
    def workspace(self, path: Path) -> Iterator[str]:
        """The path at which the boxes' user reaches `path`. All files in it are given to that user."""
        if self.user is not None:
            _give(path, self.user, self._open(path))
        if not self._mounts:
            if self.user is not None and _closed_ancestor(path.parent):
                raise PermissionError(f"workspace {path} lies in a folder that is closed to other users")
            yield str(path)
            return
        target = _STAGE / "workspace"
        target.mkdir(exist_ok=True)
        descriptor = self._open(path)
        try:
            _mount(f"/proc/self/fd/{descriptor}", str(target), None, _MS_BIND)
        finally:
            os.close(descriptor)
        try:
            yield str(target)
        finally:
            _checked(_libc.umount2(str(target).encode(), _MNT_DETACH), f"umount {target}")

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """An empty folder that belongs to the boxes' user."""
        folder = Path(tempfile.mkdtemp(prefix="sandbox-", dir=_STAGE if self._mounts else None))
        try:
            if self.user is not None:
                os.chown(folder, self.user, self.user)
            yield folder
        finally:
            disk.remove(folder)

    def _cover(self, prefixes: Sequence[Path]) -> None:
        closed = {prefix: ancestor for prefix in prefixes if (ancestor := _closed_ancestor(prefix))}
        sources = {prefix: os.open(prefix, _O_PATH) for prefix in closed}
        for ancestor in set(closed.values()):
            self._covered[ancestor] = os.open(ancestor, _O_PATH)
            _mount("sandbox", str(ancestor), "tmpfs", 0, "mode=755")
        for prefix, source in sources.items():
            prefix.mkdir(parents=True, exist_ok=True)
            _mount(f"/proc/self/fd/{source}", str(prefix), None, _MS_BIND)
            os.close(source)

    def _open(self, path: Path) -> int:
        """A descriptor of the original `path`, even if a mount now covers it."""
        for ancestor, descriptor in self._covered.items():
            if path.is_relative_to(ancestor):
                return os.open(path.relative_to(ancestor), _O_PATH, dir_fd=descriptor)
        return os.open(path, _O_PATH)


def _closed_ancestor(path: Path) -> Path | None:
    """The topmost folder on the way to `path`, or `path` itself, that other users may not enter."""
    for folder in (*reversed(path.parents), path):
        if not folder.stat().st_mode & 0o001:
            return folder
    return None


def _give(path: Path, user: int, descriptor: int) -> None:
    """Gives an open folder and all that it contains, however deep, to the user. Does not follow links. Closes the
    descriptor."""
    try:
        command = ["chown", "-hRP", f"{user}:{user}", f"/proc/self/fd/{descriptor}/."]
        given = subprocess.run(command, pass_fds=[descriptor], capture_output=True, check=False)
        if given.returncode:
            raise OSError(f"{path} could not be given to a user: {given.stderr[:200].decode(errors='replace')}")
    finally:
        os.close(descriptor)


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    words = [word.encode() if word is not None else None for word in (source, target, kind)]
    result = _libc.mount(*words, ctypes.c_ulong(flags), options.encode() if options else None)
    _checked(result, f"mount {target}")


def _checked(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
