"""The way of a batch's arrays from rank 0 to the ranks that train on them, and of what these find back to rank 0.

A replica is all ranks with one data parallel rank. Rank 0 sends it its own arrays and no others, to its first rank.
Each rank passes them on to the next, so that a rank gets an array once and gives it once. They are neither pickled nor
sent twice: a replica keeps an array for as long as rank 0 does, so that a sequence whose log-probs were computed needs
only its advantages for the update.
"""

import math
import pickle
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from io import BytesIO
from itertools import count
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from cascade_rl.engine.backend.process_groups import control_group
from cascade_rl.engine.backend.ranks import from_all, is_rank0
from cascade_rl.engine.backend.raw_arrays import Outline, Pass, filled, outline, receive, send


@dataclass(frozen=True)
class Parcel:
    """An object for a replica, before its arrays.

    pickled  with numbers in place of arrays
    follow   number, dtype and shape of the arrays that the replica does not have yet
    gone     numbers of those that it need not keep
    """

    pickled: bytes
    follow: tuple[tuple[int, np.dtype, tuple[int, ...]], ...]
    gone: tuple[int, ...]


class Replicas:
    """The replicas of a job.

    own   number of the replica of this rank; that of rank 0 is 0
    held  the arrays that this rank has from rank 0, by rank 0's numbers
    """

    def __init__(self, own: int) -> None:
        self.own = own
        self._sent = Sent()
        self.held: dict[int, np.ndarray] = {}

    def scatter[T](self, produce: Callable[[], Sequence[T]]) -> T:
        """Of the values that `produce()` returns on rank 0, one for each replica, that of this rank's. Collective.

        The arrays of a value must not be written after this; numpy refuses it.
        """
        chains = self._chains
        if not is_rank0():
            return self._received(chains[self.own])
        values = produce()
        for replica, (_, *others) in enumerate(chains):
            if others:
                self._post(values[replica], replica, others[0])
        return values[0]

    def to_rank0(self, mine: Any) -> list[Any]:
        """What the ranks hold that hold something, and not None, in the order of their replicas; on the other ranks an
        empty list. Collective."""
        told, arrays = outline(mine)
        found: list[Any] | None = [None] * dist.get_world_size() if is_rank0() else None
        dist.gather_object((self.own, None if mine is None else told), found, group=control_group())
        if found is None:
            send(arrays, partial(dist.send, dst=0, group=control_group()))
            return []
        told_by = [(replica, rank, theirs) for rank, (replica, theirs) in enumerate(found) if theirs]
        return [self._back(rank, theirs, mine) for _, rank, theirs in sorted(told_by, key=lambda one: one[:2])]

    @cached_property
    def _chains(self) -> list[list[int]]:
        """For each replica, rank 0 and then its ranks, each of which passes on to the next. Collective, once."""
        numbers = enumerate(from_all(self.own))
        chains: dict[int, list[int]] = defaultdict(lambda: [0])
        for rank, replica in numbers:
            chains[replica] += [rank] if rank else []
        return [chains[replica] for replica in sorted(chains)]

    def _post(self, value: Any, replica: int, to: int) -> None:
        parcel, arrays = self._sent.parcel(value, replica)
        dist.send_object_list([parcel], dst=to, group=control_group())
        send(arrays, partial(dist.send, dst=to, group=control_group()))

    def _received(self, chain: Sequence[int]) -> Any:
        place = chain.index(dist.get_rank())
        before, behind = chain[place - 1], chain[place + 1 :][:1]
        box: list[Any] = [None]
        dist.recv_object_list(box, src=before, group=control_group())
        for rank in behind:
            dist.send_object_list(box, dst=rank, group=control_group())

        def pass_on(chunk: torch.Tensor) -> None:
            dist.recv(chunk, src=before, group=control_group())
            for rank in behind:
                dist.send(chunk, dst=rank, group=control_group())

        return self._opened(box[0], pass_on)

    def _opened(self, parcel: Parcel, give: Pass) -> Any:
        for number in parcel.gone:
            del self.held[number]
        sizes = [dtype.itemsize * math.prod(shape) for _, dtype, shape in parcel.follow]
        for (number, dtype, shape), array in zip(parcel.follow, receive(sizes, give), strict=True):
            self.held[number] = array.view(dtype).reshape(shape)
        return _Reader(parcel.pickled, self.held).load()

    def _back(self, rank: int, told: Outline, mine: Any) -> Any:
        return filled(told, partial(dist.recv, src=rank, group=control_group())) if rank else mine


class Sent:
    """Rank 0's numbers of arrays, and which of them each replica has."""

    def __init__(self) -> None:
        self._numbers = count()
        self._known: dict[int, tuple[int, weakref.ref[np.ndarray]]] = {}  # by id, of arrays that live
        self._has: dict[int, dict[int, weakref.ref[np.ndarray]]] = {}

    def parcel(self, value: Any, replica: int) -> tuple[Parcel, list[np.ndarray]]:
        """The parcel of a value, and the arrays that follow it, contiguous. The replica has them from now on."""
        has = self._has.setdefault(replica, {})
        gone = tuple(number for number, array in has.items() if array() is None)
        for number in gone:
            del has[number]
        stream, arrays = BytesIO(), dict[int, np.ndarray]()
        _Writer(stream, arrays, self._number).dump(value)
        new = {number: array for number, array in arrays.items() if number not in has}
        has |= {number: weakref.ref(array) for number, array in new.items()}
        follow = tuple((number, array.dtype, array.shape) for number, array in new.items())
        return Parcel(stream.getvalue(), follow, gone), [np.ascontiguousarray(array) for array in new.values()]

    def _number(self, array: np.ndarray) -> int:
        key = id(array)
        if key not in self._known:
            array.flags.writeable = False
            self._known[key] = next(self._numbers), weakref.ref(array, partial(self._known.pop, key))
        return self._known[key][0]


class _Writer(pickle.Pickler):
    """Writes a number for each array, and puts the array into `arrays`."""

    def __init__(self, stream: BytesIO, arrays: dict[int, np.ndarray], number: Callable[[np.ndarray], int]) -> None:
        super().__init__(stream, protocol=5)
        self._arrays, self._number = arrays, number

    def persistent_id(self, value: Any) -> int | None:
        if not isinstance(value, np.ndarray):
            return None
        number = self._number(value)
        self._arrays[number] = value
        return number


class _Reader(pickle.Unpickler):
    def __init__(self, pickled: bytes, arrays: dict[int, np.ndarray]) -> None:
        super().__init__(BytesIO(pickled))
        self._arrays = arrays

    def persistent_load(self, number: int) -> np.ndarray:
        return self._arrays[number]
