"""A store among threads, in place of torch's, that counts what each of them asks of it."""

import threading
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta

from torch.distributed import DistStoreError


@dataclass
class CountingStore:
    """Operations, and bytes read and written, by thread. The methods are those of `torch.distributed.Store`."""

    operations: Counter[int] = field(default_factory=Counter)
    moved: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._kept: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: bytes | str) -> None:
        with self._counted(len(value)):
            self._kept[key] = value.encode() if isinstance(value, str) else value
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        self.wait([key])
        self.moved[threading.get_ident()] += len(self._kept[key])
        return self._kept[key]

    def wait(self, keys: list[str], timeout: timedelta = timedelta(seconds=300)) -> None:
        with self._counted(0):
            if not self._changed.wait_for(lambda: self._has(keys), timeout.total_seconds()):
                raise DistStoreError(f"timed out waiting for {keys}")

    def check(self, keys: list[str]) -> bool:
        with self._counted(0):
            return self._has(keys)

    def add(self, key: str, amount: int) -> int:
        with self._counted(8):
            total = int(self._kept.get(key, b"0")) + amount
            self._kept[key] = str(total).encode()
            self._changed.notify_all()
            return total

    def compare_set(self, key: str, expected: str, value: str) -> bytes:
        with self._counted(len(value)):
            if self._kept.get(key, b"").decode() == expected:
                self._kept[key] = value.encode()
                self._changed.notify_all()
            return self._kept.get(key, b"")

    def megabytes(self) -> float:
        """Of the member that moved most."""
        return max(self.moved.values()) / 1e6

    def most_and_all(self) -> tuple[int, int]:
        """Operations of the member with most of them, and of all members."""
        return max(self.operations.values()), self.operations.total()

    def _has(self, keys: list[str]) -> bool:
        return all(key in self._kept for key in keys)

    def _counted(self, count: int) -> threading.Condition:
        self.operations[threading.get_ident()] += 1
        self.moved[threading.get_ident()] += count
        return self._changed
