"""What ranks tell each other arrives to the bit, and its arrays are not pickled."""

import os
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch.distributed as dist

from cascade_rl.engine.backend import raw_arrays
from cascade_rl.engine.backend.process_groups import join_ranks
from cascade_rl.engine.backend.ranks import from_all, from_rank0
from cascade_rl.engine.backend.raw_arrays import outline
from tests.gloo import run_ranks

CHUNK_BYTES = 256


@dataclass(frozen=True)
class Told:
    name: str
    arrays: dict[str, np.ndarray | None]


def told(seed: int) -> list[Told]:
    """Arrays that fill a chunk, span several, are empty, strided, in another order, or absent."""
    rng = np.random.default_rng(seed)
    whole = rng.integers(0, 1000, (40, 6))
    arrays = {
        "bytes": rng.integers(0, 255, 255).astype(np.uint8),
        "one": np.array(rng.normal(), np.float32),
        "none": np.zeros((0, 3), np.int16),
        "long": rng.normal(size=1000),
        "strided": whole[::2],
        "transposed": whole.T,
        "flags": rng.random(7) < 0.5,
        "absent": None,
    }
    return [Told("a", arrays), Told("b", {})]


def plain(found: list[Told]) -> list[Any]:
    return [
        (
            one.name,
            [
                (name, array is None or (array.dtype, array.shape, array.tobytes()))
                for name, array in one.arrays.items()
            ],
        )
        for one in found
    ]


def exchanged() -> tuple[Any, Any, bool]:
    raw_arrays.CHUNK_BYTES = CHUNK_BYTES
    join_ranks()
    rank = int(os.environ["RANK"])
    first = from_rank0(lambda: told(7))
    each = from_all(told(rank) if rank else None)
    writable = all(
        array.flags.writeable and array.flags.aligned
        for one in first
        for array in one.arrays.values()
        if array is not None
    )
    dist.barrier()
    return plain(first), [one and plain(one) for one in each], writable


def test_arrays_arrive_to_the_bit_on_every_rank() -> None:
    expected = plain(told(7)), [None, plain(told(1)), plain(told(2))], True
    assert run_ranks(3, exchanged) == [expected] * 3


def test_contiguous_arrays_are_not_in_the_pickle() -> None:
    batch = [np.zeros(10_000, np.int64), np.zeros((100, 100), np.uint8)]
    found, arrays = outline(batch)
    assert found.sizes == (80_000, 10_000)
    assert len(found.pickled) < 500 < len(pickle.dumps(batch)) // 100
    assert all(np.shares_memory(array, own) for array, own in zip(arrays, batch, strict=True))
