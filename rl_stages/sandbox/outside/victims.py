"""What an attack may try to harm outside its box, all of this user: a file and its folder, shared memory, a process."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TEXT = b"of the trainer"
_SHM_SIZE, _SHM_MODE, _IPC_PRIVATE, _IPC_RMID = 4096, 0o1600, 0, 0

_libc = ctypes.CDLL(None, use_errno=True)
_libc.shmat.restype = ctypes.c_void_p


class Victims:
    """Their names are for the attack's standard input, as JSON: `file`, `segment` and `process`."""

    def __init__(self, file: Path, segment: int, process: subprocess.Popen[bytes]) -> None:
        self._file, self._process = file, process
        self._address = _libc.shmat(segment, None, 0)
        ctypes.memmove(self._address, _TEXT, len(_TEXT))
        self.names = json.dumps({"file": str(file), "segment": segment, "process": process.pid}).encode()
        self._before = self._state()

    def harm(self) -> str | None:
        """What has changed; None if nothing has."""
        changed = [name for name, state in self._state().items() if state != self._before[name]]
        return f"it changed, outside its box: {', '.join(changed)}" if changed else None

    def _state(self) -> dict[str, object]:
        states: dict[str, object] = {str(path): _state_of(path) for path in (self._file.parent, self._file)}
        status = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(") ")[2].split()
        states["a process"] = status[0] in "TZX", status[16:17]  # stopped or ended, and its niceness
        states["a shared segment"] = ctypes.string_at(self._address, len(_TEXT))
        return states


@contextmanager
def victims() -> Iterator[Victims]:
    with tempfile.TemporaryDirectory(prefix="sandbox-victims-") as folder:
        file = Path(folder) / "checkpoint"
        file.write_bytes(_TEXT)
        file.chmod(0o600)
        segment = _libc.shmget(_IPC_PRIVATE, _SHM_SIZE, _SHM_MODE)
        process = subprocess.Popen(["/bin/sleep", "600"])
        try:
            yield Victims(file, segment, process)
        finally:
            process.kill()
            process.wait()
            _libc.shmctl(segment, _IPC_RMID, None)
            os.chmod(folder, 0o700)


def _state_of(path: Path) -> tuple[object, ...] | None:
    if not path.exists():
        return None
    found = os.stat(path)
    return found.st_mode, found.st_mtime_ns, found.st_size, found.st_gid, tuple(os.listxattr(path))
