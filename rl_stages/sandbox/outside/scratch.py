"""A folder that goes with this process, killed or not: a shell makes it, and removes it when told to, or when alone."""

from __future__ import annotations

import secrets
import subprocess
import tempfile
import threading
from pathlib import Path

# A box may still write for a moment. What was made is told, to nobody where this process has ended by then, which must
# not end the shell too; the end of this process is the end of stdin.
_KEEPER = (
    "trap '' PIPE; "
    'mkdir -m 711 "$0" && echo made && read -r _; '
    'for _ in 1 2 3 4 5 6 7 8 9; do rm -rf -- "$0" && exit; sleep 0.3; done'
)


class Scratch:
    """Safe to use from several threads."""

    def __init__(self) -> None:
        self._path = Path(tempfile.gettempdir()) / f"sandbox-scratch-{secrets.token_hex(8)}"
        self._keeper: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def folder(self) -> Path:
        """The folder, made with the first call. Raises OSError where that cannot be."""
        with self._lock:
            if self._keeper is None:
                self._keeper = _keeper(self._path)
        return self._path

    def close(self) -> None:
        """Removes it with all that is in it. It can be called more than once."""
        with self._lock:
            keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.communicate()


def _keeper(path: Path) -> subprocess.Popen[bytes]:
    keeper = subprocess.Popen(
        ["/bin/sh", "-c", _KEEPER, str(path)],
        env={},
        start_new_session=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert keeper.stdout
    if keeper.stdout.readline() != b"made\n":
        raise OSError(f"{path} could not be made: {keeper.communicate()[1].decode(errors='replace').strip()}")
    return keeper
