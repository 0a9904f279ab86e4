"""What a refit moves: a model's weights, or only the factors of adapters on weights that the workers keep.

A worker makes its part of a weight of its part of the base, of rows of B and of columns of A, as a trainer rank does
(engine/lora/merge.py). Which rows and columns follows from the map of its weights.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from cascade_rl.engine.core.settings import LoraConfig
from cascade_rl.engine.lora.rules import factor_map, factor_name
from cascade_rl.engine.models.families.family import family_of
from cascade_rl.engine.models.hf_config import HfConfig
from cascade_rl.engine.models.name_map import Block, Index, NameMap
from cascade_rl.engine.refit.vllm_map import WorkerPlace, WorkerShard, worker_shards


@dataclass(frozen=True)
class WorkerAdapter:
    """The adapter of one HF tensor in one parameter of a worker.

    parameter  the name of that
    pieces     rectangles of the parameter, and the rows of B of each; A is the same for all
    """

    parameter: str
    pieces: tuple[tuple[Index, slice], ...]
    a: WorkerShard
    b: WorkerShard


def moved_map(hf: HfConfig, lora: LoraConfig | None) -> NameMap:
    """Of what trainer ranks hold and send."""
    name_map = family_of(hf).name_map(hf)
    return factor_map(name_map, lora) if lora else name_map


def moved_shards(hf: HfConfig, lora: LoraConfig | None, place: WorkerPlace) -> list[WorkerShard]:
    """What the worker at `place` receives. Raises UserError as `worker_shards`."""
    if not lora:
        return worker_shards(hf, place)
    return [factor for adapter in worker_adapters(hf, lora, place) for factor in (adapter.a, adapter.b)]


def worker_adapters(hf: HfConfig, lora: LoraConfig, place: WorkerPlace) -> Iterator[WorkerAdapter]:
    """Of the worker at `place`, in the order of the layers. Raises UserError as `worker_shards`."""
    factors = moved_map(hf, lora).hf_tensors()
    for shard in worker_shards(hf, place):
        tensors = dict.fromkeys(block.hf_name for block in shard.blocks)
        for number, tensor in enumerate(tensors):
            if factor_name(tensor, "A") in factors:
                yield _adapter(shard, number, tensor, lora.rank)


def _adapter(shard: WorkerShard, number: int, tensor: str, rank: int) -> WorkerAdapter:
    """Of the worker's `number`-th HF tensor in `shard`: its factors have the same name on all workers."""
    blocks, whole = [block for block in shard.blocks if block.hf_name == tensor], slice(0, rank)
    ends = list(accumulate(_length(block.hf_index[0]) for block in blocks))
    rows = [slice(end - _length(block.hf_index[0]), end) for block, end in zip(blocks, ends, strict=True)]
    columns = blocks[0].hf_index[1]
    a = Block(factor_name(tensor, "A"), (whole, columns), (whole, slice(0, _length(columns))))
    b = (
        Block(factor_name(tensor, "B"), (block.hf_index[0], whole), (own, whole))
        for block, own in zip(blocks, rows, strict=True)
    )
    return WorkerAdapter(
        shard.name,
        tuple((block.shard_index, own) for block, own in zip(blocks, rows, strict=True)),
        a=WorkerShard(f"{shard.name}.{number}.a", (rank, _length(columns)), (a,)),
        b=WorkerShard(f"{shard.name}.{number}.b", (ends[-1], rank), tuple(b)),
    )


def _length(axis: slice) -> int:
    return axis.stop - axis.start
