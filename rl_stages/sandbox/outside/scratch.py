"""A folder that is removed when this process ends, even if killed. A shell makes and removes it."""

from __future__ import annotations

import secrets
import subprocess
import tempfile
import threading
from pathlib import Path

# The shell's stdin ends when this process ends. The shell ignores SIGPIPE, so that it does not die if this process has
# ended before it prints "made". It retries the removal, because a box may still write for a moment, or have
# taken modes away.
_KEEPER = (
    "trap '' PIPE; "
    'mkdir -m 711 "$0" && echo made && read -r _; '
    'for _ in 1 2 3 4 5 6 7 8 9; do rm -rf -- "$0" && exit; chmod -R u+rwX -- "$0"; sleep 0.3; done'
)


class Scratch:
    """The folder, which is made on first use. Safe to use from several threads."""

    def __init__(self) -> None:
        self._path = Path(tempfile.gettempdir()) / f"sandbox-scratch-{secrets.token_hex(8)}"
        self._keeper: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def folder(self) -> Path:
        """The folder, which the first call makes. Raises OSError if it cannot be made."""
        with self._lock:
            if self._keeper is None:
                self._keeper = _keeper(self._path)
        return self._path

    def close(self) -> None:
        """Removes the folder and its contents. Can be called more than once."""
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
