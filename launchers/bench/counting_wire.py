"""`torch.distributed` for ranks that are threads of one process: it hands over what is small, and counts all of it.

The bytes of a tensor do not travel: the receiver's memory stays as it is, and takes no room until it is written.
"""

import pickle
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from queue import SimpleQueue
from typing import Any
from unittest import mock

import torch.distributed as dist
from torch import Tensor

from cascade_rl.engine.backend import process_groups

NAMES = (
    "get_rank", "get_world_size", "send", "recv", "send_object_list", "recv_object_list", "broadcast",
    "broadcast_object_list", "gather_object", "all_gather_object",
)  # fmt: skip


class CountingWire:
    """received, sent  bytes by rank. A broadcast is gloo's: each rank passes it on in a binomial tree of `world` ranks.

    Only the first `present` ranks of `world` are there.
    """

    def __init__(self, world: int, present: int) -> None:
        self.world, self.present = world, present
        self.received, self.sent = Counter[int](), Counter[int]()
        self._own = threading.local()
        self._between: defaultdict[tuple[int, int], SimpleQueue[bytes]] = defaultdict(SimpleQueue)
        self._slots: list[Any] = [None] * world
        self._barrier = threading.Barrier(present)
        self._lock = threading.Lock()

    def run(self, work: Callable[[int], None]) -> None:
        """`work(rank)` on every rank. Raises RuntimeError if one did not come to the end."""
        ended = list[int]()

        def rank_main(rank: int) -> None:
            self._own.rank = rank
            work(rank)
            ended.append(rank)

        with self._in_place():
            threads = [threading.Thread(target=rank_main, args=(rank,), daemon=True) for rank in range(self.present)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        if len(ended) < self.present:
            raise RuntimeError(f"{self.present - len(ended)} of {self.present} ranks failed")

    @contextmanager
    def _in_place(self) -> Iterator[None]:
        with ExitStack() as patches:
            patches.enter_context(mock.patch.object(process_groups, "_control", object()))
            for name in NAMES:
                patches.enter_context(mock.patch.object(dist, name, getattr(self, name)))
            yield

    # torch.distributed

    def get_rank(self) -> int:
        return self._own.rank

    def get_world_size(self) -> int:
        return self.world

    def send(self, tensor: Tensor, dst: int, group: object = None) -> None:
        self._give(b"", tensor.nbytes, dst)

    def recv(self, tensor: Tensor, src: int, group: object = None) -> None:
        self._get(src)

    def send_object_list(self, values: list[Any], dst: int, group: object = None) -> None:
        pickled = pickle.dumps(values)
        self._give(pickled, len(pickled), dst)

    def recv_object_list(self, values: list[Any], src: int, group: object = None) -> None:
        values[:] = pickle.loads(self._get(src))

    def broadcast(self, tensor: Tensor, src: int, group: object = None) -> None:
        self._to_all(b"", tensor.nbytes, src)

    def broadcast_object_list(self, values: list[Any], src: int, group: object = None) -> None:
        pickled = pickle.dumps(values) if self.get_rank() == src else b""
        found = self._to_all(pickled, len(pickled), src)
        values[:] = pickle.loads(found) if found else values

    def gather_object(self, value: Any, gathered: list[Any] | None, group: object = None) -> None:
        self._exchange(value, [0])
        if gathered is not None:
            gathered[:] = self._slots
        self._barrier.wait()

    def all_gather_object(self, gathered: list[Any], value: Any, group: object = None) -> None:
        self._exchange(value, range(self.world))
        gathered[:] = self._slots
        self._barrier.wait()

    def _exchange(self, value: Any, to: Any) -> None:
        self._slots[self.get_rank()] = value
        size = len(pickle.dumps(value))
        for rank in to:
            self._count(size, rank)
        self._barrier.wait()

    def _to_all(self, message: bytes, size: int, src: int) -> bytes:
        if self.get_rank() != src:
            return self._get(src)
        children = (self.world - 1).bit_length()
        self._count(size * children, None)
        for rank in range(self.present):
            if rank != src:
                self._between[src, rank].put(message)
                self.received[rank] += size
        return b""

    def _give(self, message: bytes, size: int, to: int) -> None:
        self._count(size, to)
        self._between[self.get_rank(), to].put(message)

    def _get(self, source: int) -> bytes:
        with self._lock:  # a defaultdict makes its entries in Python
            queue = self._between[source, self.get_rank()]
        return queue.get()

    def _count(self, size: int, to: int | None) -> None:
        with self._lock:
            self.sent[self.get_rank()] += size
            if to is not None:
                self.received[to] += size
