"""Rank 0's arrays come once to the replica that needs them, and to no other rank."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist

from cascade_rl.engine.backend import raw_arrays
from cascade_rl.engine.backend.process_groups import join_ranks
from cascade_rl.engine.backend.raw_arrays import ALIGNMENT
from cascade_rl.engine.backend.replicas import Replicas, Sent
from tests.gloo import run_ranks

REPLICA = [0, 1, 0, 1, 2]  # of each rank: two of two ranks, one of one
KIND = np.dtype([("token", np.int32), ("logprob", np.float32)])


def share(replica: int) -> dict[str, Any]:
    """Of another size for each replica."""
    rng, length = np.random.default_rng(replica), 1000 * (replica + 1)
    wide = rng.integers(0, 128, (length, 6))
    return {
        "routes": wide.astype(np.uint8),
        "tokens": rng.integers(0, 131_072, length),
        "strided": wide[::3, 2],
        "none": np.zeros((0, 3), np.float32),
        "typed": np.zeros(3, KIND),
        "name": f"replica {replica}",
    }


def plain(value: Any) -> Any:
    return {
        name: (held.dtype.descr, held.shape, held.tobytes()) if isinstance(held, np.ndarray) else held
        for name, held in value.items()
    }


@contextmanager
def counted() -> Iterator[list[int]]:
    """Bytes of each tensor that this rank gets."""
    got: list[int] = []

    def counting(real: Any) -> Any:
        def call(tensor: torch.Tensor, src: int, **kwargs: Any) -> Any:
            got.extend([tensor.nbytes] if src != dist.get_rank() else [])
            return real(tensor, src=src, **kwargs)

        return call

    with ExitStack() as patches:
        for name in ("recv", "broadcast"):
            patches.enter_context(mock.patch.object(dist, name, counting(getattr(dist, name))))
        yield got


@dataclass
class Found:
    """Of one rank: what it has after each call, the bytes that it got in each, and the arrays that it keeps."""

    values: list[Any]
    bytes: list[int]
    kept: list[int]
    back: list[Any]


def scattered() -> Found:
    raw_arrays.CHUNK_BYTES = 4096
    join_ranks()
    replicas = Replicas(REPLICA[int(os.environ["RANK"])])
    _ = replicas._chains  # which all ranks tell each other once
    shares = [share(replica) for replica in range(3)] if replicas.own == 0 else []
    found = Found([], [], [], [])

    def turn(values: list[Any]) -> None:
        with counted() as got:
            found.values.append(plain(replicas.scatter(lambda: values)))
        found.bytes.append(sum(got))
        found.kept.append(len(replicas.held))

    turn(shares)
    again = [each | {"advantage": np.ones(1000, np.float32)} for each in shares]
    turn(again)
    turn([{"tokens": each["tokens"]} for each in reversed(shares)])
    del again, shares[:]
    turn([{}, {}, {}])
    leads = dist.get_rank() in (0, 1, 4)
    found.back = [plain(each) for each in replicas.to_rank0(share(replicas.own) if leads else None)]
    dist.barrier()
    return found


@pytest.fixture(scope="module")
def found() -> list[Found]:
    return run_ranks(len(REPLICA), scattered)


def test_a_rank_gets_what_is_its_replicas_to_the_bit(found: list[Found]) -> None:
    ones = plain({"advantage": np.ones(1000, np.float32)})
    for rank, replica in zip(found, REPLICA, strict=True):
        first, again, others, nothing = rank.values
        assert first == plain(share(replica))
        assert again == first | ones
        assert others == plain({"tokens": share(2 - replica)["tokens"]})
        assert nothing == {}


def test_a_rank_gets_its_own_arrays_once_and_no_others(found: list[Found]) -> None:
    for rank, (got, replica) in enumerate(zip(found, REPLICA, strict=True)):
        arrays = [held for held in share(replica).values() if isinstance(held, np.ndarray)]
        own = sum(-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in arrays)
        advantages, tokens = 4032, share(2 - replica)["tokens"].nbytes if replica != 1 else 0
        assert got.bytes == ([0] * 4 if rank == 0 else [own, advantages, tokens, 0])


def test_a_replica_keeps_an_array_for_as_long_as_rank_0_does(found: list[Found]) -> None:
    for rank, got in enumerate(found):
        assert got.kept[-1] == 0
        assert got.kept[:2] == ([0, 0] if rank == 0 else [5, 6])


def test_what_the_replicas_found_comes_to_rank_0_alone_and_in_their_order(found: list[Found]) -> None:
    first, *others = found
    assert first.back == [plain(share(replica)) for replica in range(3)]
    assert [rank.back for rank in others] == [[]] * 4


def test_an_array_that_was_sent_cannot_be_changed() -> None:
    array = np.zeros(4)
    Sent().parcel(array, 1)
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


def test_a_number_is_not_given_to_a_second_array() -> None:
    sent = Sent()
    first, second = ([number for number, *_ in sent.parcel(np.zeros(9), 1)[0].follow] for _ in range(2))
    assert first != second
    assert list(sent.parcel(None, 1)[0].gone) == second
