"""Reads checkpoints into the page cache, so that loading them waits for no disk."""

import os
from contextlib import suppress
from pathlib import Path
from threading import Thread

CHUNK_BYTES = 16 << 20


class ReadAhead:
    """One checkpoint at a time, in the background, on one rank of each node."""

    def __init__(self) -> None:
        self._thread: Thread | None = None

    def start(self, folder: Path) -> None:
        """Begins to read the weights of a checkpoint, unless it still reads another one."""
        if int(os.environ["LOCAL_RANK"]) or (self._thread and self._thread.is_alive()):
            return
        self._thread = Thread(target=_read, args=[folder], name="read ahead", daemon=True)
        self._thread.start()


def _read(folder: Path) -> None:
    buffer = bytearray(CHUNK_BYTES)
    with suppress(OSError):  # loading the checkpoint meets the same error, and raises it
        for path in sorted(folder.glob("*.safetensors")):
            with path.open("rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass
