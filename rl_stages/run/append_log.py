"""An append-only file of records, of which a kill loses at most the record that was being written.

Guarantees: when `append` returns, the kernel has the record, so no kill of this process loses it. It is on disk soon
after, and in any case after `sync`. When the file is opened, a torn or damaged record and all records after it are
dropped.
"""

import os
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from struct import Struct
from threading import Lock

from cascade_rl.rl_stages.run.durable_file import sync

FRAME = Struct("<QI")  # size of the record in bytes, and its CRC-32


def read_records(path: Path) -> list[bytes]:
    """The intact records from the start of the file; none if there is no file."""
    return list(_whole(path.read_bytes())) if path.exists() else []


class AppendLog:
    """Any thread may append. One thread syncs. All records that come during a sync share the next one, so a slow disk
    (10 ms per sync) does not delay the appending threads."""

    def __init__(self, path: Path, kept: Sequence[bytes]) -> None:
        """Continues the file after `kept`, its first records, and truncates the rest. Creates the file if needed."""
        self._file = path.open("ab", buffering=0)
        self._file.truncate(sum(FRAME.size + len(record) for record in kept))
        sync(path.parent)
        self._lock = Lock()
        self._syncer = ThreadPoolExecutor(1, thread_name_prefix="sync")
        self._sync: Future[None] = self._syncer.submit(os.fsync, self._file.fileno())

    def append(self, record: bytes) -> None:
        """Raises OSError if this write fails, or if an earlier sync failed."""
        with self._lock:
            rest = memoryview(FRAME.pack(len(record), zlib.crc32(record)) + record)
            while rest:  # an almost full disk takes a part and returns its size
                rest = rest[self._file.write(rest) :]
            if self._sync.done():
                self._sync.result()
            if self._sync.done() or self._sync.running():
                self._sync = self._syncer.submit(self._after, self._sync)

    def sync(self) -> None:
        """Waits until all records are on disk. Raises OSError if that fails."""
        with self._lock:
            self._sync = self._syncer.submit(self._after, self._sync)
        self._sync.result()

    def close(self) -> None:
        self.sync()
        self._syncer.shutdown()
        self._file.close()

    def _after(self, earlier: Future[None]) -> None:
        earlier.result()  # raises if it failed
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
