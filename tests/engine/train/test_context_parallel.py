"""Which tokens a context parallel rank holds, that everything of a token goes with it, and the way back."""

import numpy as np
import pytest
import torch
import torch.distributed as dist

from cascade_rl.engine.backend.zigzag import gather, in_order, zigzag
from cascade_rl.engine.core.train_sequence import TrainSequence
from cascade_rl.engine.train.context_parallel import shard
from cascade_rl.engine.train.packing import MicroBatch, pack
from tests.gloo import run_ranks

LENGTHS = (7, 3, 8)


def packed(size: int) -> MicroBatch:
    """Every array of a token holds its number in the global batch, so that what is torn apart is seen."""
    first, sequences = 0, []
    for length in LENGTHS:
        ids = np.arange(first, first + length + 1)
        values = ids[:-1].astype(np.float32)
        routes = np.repeat(ids[:-1], 4).reshape(length, 2, 2)
        sequences.append(TrainSequence(ids, ids[:-1] % 3 > 0, 1.0 + first, {"advantage": values}, routes))
        first += length
    return pack(sequences, [[0, 1, 2]], segment_multiple=2 * size)[0]


def test_a_rank_holds_a_piece_from_the_front_and_one_from_the_back_of_each_sequence() -> None:
    borders = torch.tensor([0, 4, 12], dtype=torch.int32)
    assert zigzag(borders, 2, 0).tolist() == [0, 3, 4, 5, 10, 11]
    assert zigzag(borders, 2, 1).tolist() == [1, 2, 6, 7, 8, 9]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_token_is_held_once(size: int) -> None:
    batch = packed(size)
    held = torch.cat([zigzag(batch.cu_seqlens, size, rank) for rank in range(size)])
    assert held.sort().values.tolist() == list(range(batch.targets.numel()))
    assert in_order(held, batch.cu_seqlens, size).tolist() == list(range(batch.targets.numel()))


@pytest.mark.parametrize("rank", [0, 1])
def test_all_that_belongs_to_a_token_stays_with_it(rank: int) -> None:
    batch, size = packed(2), 2
    part = shard(batch, size, rank)
    real = part.targets >= 0
    number = part.input_ids[0][real]
    assert real.sum() > 0
    assert torch.equal(part.targets[real], number + 1)
    assert torch.equal(part.loss_mask[real], number % 3 > 0)
    assert torch.equal(part.per_token["advantage"][real], number.float())
    assert part.routes is not None
    assert torch.equal(part.routes[real], number[:, None, None].expand(-1, 2, 2))
    starts = np.cumsum([0, *LENGTHS])
    of = np.searchsorted(starts, number, side="right") - 1
    assert (number.numpy() - starts[of] == part.position_ids[0][real].numpy()).all()
    assert (part.temperature[real].numpy() == 1.0 + starts[of]).all()
    assert (part.cu_seqlens is batch.cu_seqlens) and part.index == batch.index


def test_a_segment_that_is_not_cut_evenly_is_told() -> None:
    with pytest.raises(ValueError, match=r"multiple of 4 tokens \(2 x context\), found lengths \[6\]"):
        zigzag(torch.tensor([0, 4, 10]), 2, 0)


def gathered() -> torch.Tensor:
    dist.init_process_group("gloo")
    group = dist.group.WORLD
    assert group is not None
    batch = packed(group.size())
    part = shard(batch, group.size(), group.rank())
    return gather(part.per_token["advantage"], batch.cu_seqlens, group)


def test_values_come_back_in_the_order_of_the_row() -> None:
    for whole in run_ranks(2, gathered):
        assert torch.equal(whole, packed(2).per_token["advantage"])
