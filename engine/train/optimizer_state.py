"""Master weights and moments in the shapes of the model, stored by the ranks that hold them.

Of each parameter, a data parallel rank holds a flat range in Megatron's distributed optimizer. Megatron stores these by
parameter too ("fully_reshardable"), but gathers them first: every rank then has 12 bytes for each parameter of its
model shard in host memory. Its format without a gather ("dp_reshardable") can be read only under the same tensor,
pipeline and expert parallelism. Here a range is stored as the boxes that it is in the whole parameter. Nothing is
gathered, and under any layout a rank reads what it holds. The tensors of a checkpoint are those of
"fully_reshardable", so either way reads what the other wrote.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
from megatron.core.dist_checkpointing.optimizer import extract_sharded_tensors_and_factories
from megatron.core.optimizer.cpu_offloading import HybridDeviceOptimizer
from torch import Tensor

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Held:
    """What a rank holds of a parameter: entries [first, first + n) of its flattened shard.

    numbers  float32 [n] by name: "param" for the master weight, and the moments
    """

    parameter: Tensor
    first: int
    numbers: Mapping[str, Tensor]

    def emptied(self) -> "Held":
        """The same, of numbers on the host that are to be read."""
        numbers = {name: torch.empty(flat.shape, dtype=flat.dtype) for name, flat in self.numbers.items()}
        return replace(self, numbers=numbers)


def held(optimizer: Any) -> Iterator[Held]:
    """All that this rank holds in one of Megatron's distributed optimizers."""
    buckets = (bucket for ranges in optimizer.gbuf_ranges for found in ranges.values() for bucket in found)
    for bucket in buckets:
        for parameter, ranges in bucket["param_map"].items():
            tensors = optimizer._get_main_param_and_optimizer_states(parameter)
            numbers = {name: tensor.detach() for name, tensor in tensors.items() if tensor.dim()}
            yield Held(parameter, ranges["param"].start, numbers)


@torch.no_grad()
def put_back(optimizer: Any, found: list[Held]) -> None:
    """Gives the optimizer the numbers that were read."""
    for one in found:
        optimizer._set_main_param_and_optimizer_states(one.parameter, one.numbers)
    if isinstance(optimizer.optimizer, HybridDeviceOptimizer):
        optimizer.optimizer._sync_hdo_state_to_sub_optimizers()


def stored(found: list[Held], model: dict[str, Any]) -> list[ShardedTensor]:
    """The boxes of a checkpoint whose memory is that of `found`. `model` is the model's sharded state."""
    whole, _ = extract_sharded_tensors_and_factories(model)
    places = {id(place.data): place for place in nested_values(whole)}
    return [
        box
        for one in found
        for part, begin in _parts(places[id(one.parameter)])
        for name, flat in one.numbers.items()
        for box in _boxes_of(part, one.first - begin, flat, f"optimizer.state.{name}.{part.key}")
    ]


def _parts(place: ShardedTensor | ShardedTensorFactory) -> Iterator[tuple[ShardedTensor, int]]:
    """The tensors of a checkpoint that a parameter is split into, each with its first entry in the flat parameter."""
    if isinstance(place, ShardedTensor):
        yield place, 0
        return
    flat = torch.empty(place.data.shape, dtype=place.data.dtype, device="meta")
    for part in nested_values(replace(place, data=flat).build()):
        if not part.data.is_contiguous() or part.data.untyped_storage()._cdata != flat.untyped_storage()._cdata:
            raise NotImplementedError(f"{place.key}: expected a parameter that is split into runs, found other parts")
        yield part, part.data.storage_offset()


def _boxes_of(part: ShardedTensor, first: int, flat: Tensor, key: str) -> Iterator[ShardedTensor]:
    """The entries `flat`, of which `first` is the place of the first one in the flattened part, as far as they are in
    it."""
    start, end = max(first, 0), min(first + len(flat), prod(part.local_shape))
    leading = part.prepend_axis_num
    for offset, size in boxes(part.local_shape, start, end):
        numbers = flat[start - first : start - first + prod(size)]
        start += prod(size)
        within = (0,) * leading + offset
        yield ShardedTensor(
            key,
            numbers.view((1,) * leading + size),
            numbers.dtype,
            (1,) * leading + size,
            part.global_shape,
            tuple(map(sum, zip(part.global_offset, within, strict=True))),
            axis_fragmentations=None,
            replica_id=(*part.replica_id[:2], 0),  # the last counts data parallel ranks, which hold different entries
        )


def boxes(shape: Shape, start: int, end: int) -> Iterator[tuple[Shape, Shape]]:
    """Entries [start, end) of a flattened array, as boxes in their order: (offset, size) each."""
    if start >= end:
        return
    if len(shape) == 1:
        yield (start,), (end - start,)
        return
    row_size = prod(shape[1:])
    row, begin = divmod(start, row_size)
    if begin == 0 and (rows := (end - start) // row_size):
        yield (row,) + (0,) * (len(shape) - 1), (rows, *shape[1:])
        stop = start + rows * row_size
    else:
        stop = min(end, (row + 1) * row_size)
        yield from (((row, *at), (1, *size)) for at, size in boxes(shape[1:], begin, begin + stop - start))
    yield from boxes(shape, stop, end)
