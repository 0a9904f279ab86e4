"""A file of records that a kill cuts short at most by the record that was being written.

Guarantees: a record is in the kernel's hands when `append` returns, so that no kill of this process loses it; it is on
the disk soon after, and surely after `sync`. A record that is torn or damaged is dropped when the file is opened, and
with it what follows.
"""

import os
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from struct import Struct
from threading import Lock

from cascade_rl.rl_stages.run.durable_file import sync_folder

FRAME = Struct("<QI")  # bytes of the record, and their CRC-32


def read_records(path: Path) -> list[bytes]:
    """The whole records from the start of the file on; none where there is no file."""
    return list(_whole(path.read_bytes())) if path.exists() else []


class AppendLog:
    """Any thread appends. One thread syncs: whatever came while it was busy shares its next sync, so that a disk that
    takes 10 ms for one costs those who append nothing."""

    def __init__(self, path: Path, kept: Sequence[bytes]) -> None:
        """Goes on after `kept`, the first records of the file, which is made where it is not; the rest is cut off."""
        self._file = path.open("ab", buffering=0)
        self._file.truncate(sum(FRAME.size + len(record) for record in kept))
        sync_folder(path.parent)
        self._lock = Lock()
        self._syncer = ThreadPoolExecutor(1, thread_name_prefix="sync")
        self._sync: Future[None] = self._syncer.submit(os.fsync, self._file.fileno())

    def append(self, record: bytes) -> None:
        """Raises OSError where the disk does not take it, or did not take one before."""
        with self._lock:
            rest = memoryview(FRAME.pack(len(record), zlib.crc32(record)) + record)
            while rest:  # a disk that has room for a part of it takes that part, and says so
                rest = rest[self._file.write(rest) :]
            if self._sync.done():
                self._sync.result()
            if self._sync.done() or self._sync.running():
                self._sync = self._syncer.submit(self._after, self._sync)

    def sync(self) -> None:
        """Waits until all is on the disk. Raises OSError where it does not get there."""
        with self._lock:
            self._sync = self._syncer.submit(self._after, self._sync)
        self._sync.result()

    def close(self) -> None:
        self.sync()
        self._syncer.shutdown()
        self._file.close()

    def _after(self, earlier: Future[None]) -> None:
        earlier.result()  # one that failed is told, not forgotten
        os.fsync(self._file.fileno())


def _whole(content: bytes) -> Iterator[bytes]:
    at = 0
    while at + FRAME.size <= len(content):
        length, checksum = FRAME.unpack_from(content, at)
        record = content[at + FRAME.size : at + FRAME.size + length]
        if len(record) != length or zlib.crc32(record) != checksum:
            return
        yield record
        at += FRAME.size + length
