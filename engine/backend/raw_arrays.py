"""Objects between ranks whose arrays travel as they are.

Pickle copies each array into its stream and out of it again, seconds for each gigabyte on every rank. By its protocol 5
(PEP 574) it leaves them out. They follow in chunks, in which every array is aligned.
"""

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch

CHUNK_BYTES = 64 << 20
ALIGNMENT = 64

Pass = Callable[[torch.Tensor], Any]
"""Gives a chunk, uint8 [bytes], to other ranks, or fills it with what one of them gives."""


@dataclass(frozen=True)
class Outline:
    """An object without its arrays: what pickle makes of it, and their sizes in bytes."""

    pickled: bytes
    sizes: tuple[int, ...]


def outline(value: Any) -> tuple[Outline, list[np.ndarray]]:
    """The outline of an object, and the bytes of its contiguous arrays. The others are in the outline."""
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    arrays = [np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers]
    return Outline(pickled, tuple(array.nbytes for array in arrays)), arrays


def filled(told: Outline, give: Pass) -> Any:
    """The object of an outline. Its arrays share the memory of their chunks, and may be written."""
    return pickle.loads(told.pickled, buffers=receive(told.sizes, give))


def send(arrays: Sequence[np.ndarray], take: Pass) -> None:
    """Gives the bytes of contiguous arrays to `take`, chunk after chunk."""
    for chunk in _chunks([array.nbytes for array in arrays]):
        packed = np.empty(chunk.bytes, np.uint8)
        for place, start in chunk.starts.items():
            packed[start : start + arrays[place].nbytes] = arrays[place].reshape(-1).view(np.uint8)
        take(torch.from_numpy(packed))


def receive(sizes: Sequence[int], give: Pass) -> list[np.ndarray]:
    """The bytes of arrays of so many bytes, uint8 each, from the chunks that `give` fills."""
    views: list[np.ndarray] = []
    for chunk in _chunks(sizes):
        packed = np.empty(chunk.bytes, np.uint8)
        give(torch.from_numpy(packed))
        views += [packed[start : start + sizes[place]] for place, start in chunk.starts.items()]
    return views


@dataclass(frozen=True)
class _Chunk:
    """Arrays, by their places in the list, and where each starts."""

    starts: dict[int, int]
    bytes: int


def _chunks(sizes: Sequence[int]) -> Iterator[_Chunk]:
    """Arrays in order; a new chunk begins with the first one past each CHUNK_BYTES."""
    ends = np.cumsum([_aligned(size) for size in sizes], dtype=np.int64).tolist()
    starts = [0, *ends]
    for _, group in groupby(range(len(sizes)), lambda place: starts[place] // CHUNK_BYTES):
        places = list(group)
        first = starts[places[0]]
        yield _Chunk({place: starts[place] - first for place in places}, ends[places[-1]] - first)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
