"""A flat range of a parameter, as the boxes of a checkpoint."""

from itertools import product
from math import prod

import numpy as np
import pytest
import torch
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory

from cascade_rl.engine.train.optimizer_state import Held, boxes, stored


@pytest.mark.parametrize("shape", [(5,), (4, 6), (3, 1, 4), (2, 3, 4)])
def test_boxes_are_the_entries_of_a_range_in_their_order(shape: tuple[int, ...]) -> None:
    entries, most = np.arange(prod(shape)).reshape(shape), 2 * len(shape) - 1
    for start, end in product(range(prod(shape) + 1), repeat=2):
        found = list(boxes(shape, start, end))
        cuts = [entries[tuple(slice(at, at + n) for at, n in zip(offset, size, strict=True))] for offset, size in found]
        assert [number for cut in cuts for number in cut.flat] == list(range(start, end))
        assert len(found) <= most


def gate_and_up(parameter: torch.Tensor) -> ShardedTensorFactory:
    """As Megatron stores the two halves of a gated MLP: rank 1 of 2 has the second part of each."""

    def build(key: str, data: torch.Tensor, replica: tuple, _: slice | None) -> list[ShardedTensor]:
        halves = zip(["gate", "up"], data.chunk(2), strict=True)
        return [
            ShardedTensor.from_rank_offsets(f"{key}.{name}", half, (0, 1, 2), replica_id=replica)
            for name, half in halves
        ]

    return ShardedTensorFactory("mlp", parameter, build, lambda parts: torch.cat(parts), (0, 0, 3))


def test_a_range_is_split_as_its_parameter_is() -> None:
    parameter = torch.empty(4, 3)
    held = Held(parameter, 4, {"exp_avg": torch.arange(4.0, 9.0)})  # the end of gate, and the first row of up
    found = stored([held], {"mlp": gate_and_up(parameter)})
    assert [(box.key.removeprefix("optimizer.state.exp_avg.mlp."), box.global_offset) for box in found] == [
        ("gate", (3, 1)), ("up", (2, 0))
    ]  # fmt: skip
    assert [box.data.flatten().tolist() for box in found] == [[4.0, 5.0], [6.0, 7.0, 8.0]]
    assert {(box.global_shape, box.replica_id) for box in found} == {((4, 3), (0, 0, 0))}


def test_layers_that_are_stacked_have_their_place() -> None:
    parameter = torch.empty(2, 3)
    place = ShardedTensor.from_rank_offsets(
        "layers.weight", parameter, (0, 5, 8), prepend_axis_num=1, replica_id=(0, 1, 2)
    )
    (tail, row) = stored([Held(parameter, 1, {"param": torch.arange(1.0, 6.0)})], {"weight": place})
    assert (tail.global_offset, tail.local_shape, tail.replica_id) == ((5, 0, 1), (1, 1, 2), (0, 1, 0))
    assert (row.global_offset, row.data.tolist()) == ((5, 1, 0), [[[3.0, 4.0, 5.0]]])


def test_a_parameter_that_is_not_split_into_runs_is_refused() -> None:
    parameter = torch.empty(4, 4)

    def build(key: str, data: torch.Tensor, replica: tuple, _: slice | None) -> list[ShardedTensor]:
        return [ShardedTensor.from_rank_offsets(key, data.chunk(2, 1)[0], replica_id=replica)]

    columns = ShardedTensorFactory("weight", parameter, build, lambda parts: parts, (0, 0, 0))
    with pytest.raises(NotImplementedError, match="weight: expected a parameter that is split into runs"):
        stored([Held(parameter, 0, {"param": torch.zeros(2)})], {"weight": columns})
