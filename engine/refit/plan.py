"""The plan of a refit: which slice of which trainer rank's shard goes where in which worker's parameter, and when.

Pure numbers, computed once from the places of the ranks, the same in every process. Each rank keeps its own buckets of
it. What depends only on the place of a rank is computed once for all ranks of that place.

Both sides of the name map say which rectangles of the Hugging Face tensors they hold; a transfer is an intersection of
two of them. Each number that a worker needs has exactly one source: a rank on the worker's own card where there is one,
otherwise the least loaded of those that hold it, on the worker's node if possible. Nothing is gathered, and nothing
that a worker does not keep is sent to it.

The transfers are laid out over rounds: in one round no rank packs or receives more than `bucket_bytes`, half of it
within its node and half of it between nodes, and all pairs exchange one bucket at once. This keeps stages, expert
parallel ranks and both kinds of link busy at the same time.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from cascade_rl.engine.core.settings import LoraConfig
from cascade_rl.engine.models.hf_config import HfConfig
from cascade_rl.engine.models.name_map import Block, Cut, Index, NameMap, Place
from cascade_rl.engine.refit.factors import moved_map, moved_shards
from cascade_rl.engine.refit.vllm_map import WorkerPlace, WorkerShard, size

BUCKET_BYTES = 64 << 20


class RefitError(RuntimeError):
    """A refit did not bring every weight to every worker. The message names the weights."""


@dataclass(frozen=True)
class Member[P: (Place, WorkerPlace)]:
    """A rank that takes part in a refit. Ranks on one `card` copy within it; links within one `node` are fast.

    On the CPU the memory of a host, which processes share, is one card.
    """

    place: P
    card: str
    node: str


class Transfer(NamedTuple):
    """`parameter[target_index]` of worker `target` becomes `shard[source_index]` of trainer rank `source`."""

    source: int
    target: int
    shard: str
    source_index: Index
    parameter: str
    target_index: Index
    bytes: int
    minus_exp: bool

    def __str__(self) -> str:
        axes = ", ".join(f"{axis.start}:{axis.stop}" for axis in self.target_index)
        return f"{self.parameter}[{axes}]"


@dataclass(frozen=True)
class Bucket:
    """What one rank sends to one worker in one round; `local` if both are on the same card."""

    source: int
    target: int
    local: bool
    transfers: tuple[Transfer, ...]

    @property
    def bytes(self) -> int:
        return sum(transfer.bytes for transfer in self.transfers)


@dataclass(frozen=True)
class Plan:
    """rounds       buckets that are exchanged at the same time, round after round
    lower_bound  bytes that workers need and no rank on their card holds
    """

    rounds: tuple[tuple[Bucket, ...], ...]
    lower_bound: int

    def sent_by(self, source: int) -> list[list[Bucket]]:
        return [[bucket for bucket in buckets if bucket.source == source] for buckets in self.rounds]

    def received_by(self, target: int) -> list[list[Bucket]]:
        return [[bucket for bucket in buckets if bucket.target == target] for buckets in self.rounds]

    def wire_bytes(self) -> int:
        return sum(bucket.bytes for buckets in self.rounds for bucket in buckets if not bucket.local)


class _Held(NamedTuple):
    """A block of an HF tensor that trainer rank `rank` holds."""

    rank: int
    shard: str
    block: Block


class _Piece(NamedTuple):
    """What every worker of one place needs, as a rectangle of an HF tensor, and the ranks that hold it."""

    holders: Sequence[_Held]
    hf_index: Index
    parameter: str
    target_index: Index
    bytes: int
    minus_exp: bool

    def transfer(self, held: _Held, target: int) -> Transfer:
        source_index = _within(self.hf_index, held.block)
        return Transfer(held.rank, target, held.shard, source_index, *self[2:])


Concerns = Callable[[int, int], bool]
"""Whether what trainer rank `source` sends to worker `target` is to be in a plan."""


def everyone(_source: int, _target: int) -> bool:
    """The `Concerns` of a whole plan."""
    return True


def make_plan(
    hf: HfConfig,
    trainers: Sequence[Member[Place]],
    workers: Sequence[Member[WorkerPlace]],
    itemsize: Callable[[str], int],
    bucket_bytes: int = BUCKET_BYTES,
    concerns: Concerns = everyone,
    lora: LoraConfig | None = None,
) -> Plan:
    """The plan of every refit between these ranks, of weights or of the factors of `lora`; of its buckets, those that
    `concerns` says.

    `itemsize` gives the bytes of one number of a vLLM parameter. Raises UserError if a layout does not divide
    the model, RefitError if no trainer rank holds a part of a tensor, which it names.
    """
    if not workers:
        return Plan((), 0)
    held, limit = _held(moved_map(hf, lora), trainers), bucket_bytes // 2
    shards = {place: moved_shards(hf, lora, place) for place in {worker.place for worker in workers}}
    pieces = {
        place: [list(_pieces(shard, held, itemsize(shard.name), limit)) for shard in found]
        for place, found in shards.items()
    }
    wanted = (
        (piece, target)
        for position in _order(shards[workers[0].place], held, trainers)
        for target, worker in enumerate(workers)
        for piece in pieces[worker.place][position]
    )
    choice = _Choice(trainers, workers)
    return Plan(_rounds(wanted, choice, limit, concerns), choice.remote_bytes)


def _held(name_map: NameMap, trainers: Sequence[Member[Place]]) -> dict[str, dict[tuple, list[_Held]]]:
    """For each HF tensor the rectangles that it is split into, and the ranks that hold each of them."""
    shards = {alike: name_map.shards(alike) for alike in {_any_copy(trainer.place) for trainer in trainers}}
    held: dict[str, dict[tuple, list[_Held]]] = defaultdict(lambda: defaultdict(list))
    for rank, trainer in enumerate(trainers):
        for shard in shards[_any_copy(trainer.place)]:
            for block in shard.blocks:
                held[block.hf_name][_corners(block.hf_index)].append(_Held(rank, shard.name, block))
    return held


def _any_copy(place: Place) -> Place:
    """The place without its number among the ranks that hold the same."""
    return replace(place, data=Cut(), expert_data=Cut())


def _corners(index: Index) -> tuple:
    return tuple((axis.start, axis.stop) for axis in index)


def _order(shards: Sequence[WorkerShard], held: dict, trainers: Sequence[Member[Place]]) -> list[int]:
    """An order of the parameters in which all pipeline stages send at once, each its layers in order."""
    stages: dict[int, list[int]] = defaultdict(list)
    for position, shard in enumerate(shards):
        holders = next(iter(held[shard.blocks[0].hf_name].values()), None)
        stages[trainers[holders[0].rank].place.pipeline.rank if holders else 0].append(position)
    turns = (
        (turn / len(positions), stage, position)
        for stage, positions in stages.items()
        for turn, position in enumerate(positions)
    )
    return [position for _, _, position in sorted(turns)]


class _Choice:
    """Which of several ranks that hold the same numbers sends them."""

    def __init__(self, trainers: Sequence[Member[Place]], workers: Sequence[Member[WorkerPlace]]) -> None:
        self._distances = [[_distance(trainer, worker) for trainer in trainers] for worker in workers]
        within, between = [0] * len(trainers), [0] * len(trainers)
        self._sent = (within, within, between)  # within and between nodes, by distance
        self.remote_bytes = 0

    def __call__(self, piece: _Piece, target: int) -> _Held:
        distances, sent = self._distances[target], self._sent
        chosen = min(piece.holders, key=lambda held: (distances[held.rank], sent[distances[held.rank]][held.rank]))
        if distance := distances[chosen.rank]:
            sent[distance][chosen.rank] += piece.bytes
            self.remote_bytes += piece.bytes
        return chosen

    def local(self, source: int, target: int) -> bool:
        return self._distances[target][source] == SAME_CARD

    def near(self, source: int, target: int) -> bool:
        return self._distances[target][source] < OTHER_NODE


SAME_CARD, SAME_NODE, OTHER_NODE = range(3)


def _distance(trainer: Member[Place], worker: Member[WorkerPlace]) -> int:
    if trainer.card == worker.card:
        return SAME_CARD
    return SAME_NODE if trainer.node == worker.node else OTHER_NODE


def _pieces(shard: WorkerShard, held: dict, width: int, limit: int) -> Iterator[_Piece]:
    for block in shard.blocks:
        missing = size(block.hf_index)
        for holders in held[block.hf_name].values():
            overlap = _intersection(block.hf_index, holders[0].block.hf_index)
            missing -= size(overlap) if overlap else 0
            for box in _halves(overlap, limit // width) if overlap else ():
                yield _Piece(holders, box, shard.name, _within(box, block), size(box) * width, shard.minus_exp)
        if missing:
            raise RefitError(
                f"expected trainer ranks to hold all of {block.hf_name}, which is {shard.name} in vLLM; found none "
                f"with {missing} numbers of it: the two name maps do not describe one model"
            )


def _intersection(one: Index, other: Index) -> Index | None:
    axes = tuple(slice(max(a.start, b.start), min(a.stop, b.stop)) for a, b in zip(one, other, strict=True))
    return axes if all(axis.start < axis.stop for axis in axes) else None


def _halves(box: Index, limit: int) -> Iterator[Index]:
    """The rectangle in pieces of at most `limit` numbers, split along its first axes so that rows stay whole."""
    if size(box) <= limit:
        yield box
        return
    axis = next(i for i, edge in enumerate(box) if edge.stop - edge.start > 1)
    start, stop = box[axis].start, box[axis].stop
    for half in (slice(start, (start + stop) // 2), slice((start + stop) // 2, stop)):
        yield from _halves((*box[:axis], half, *box[axis + 1 :]), limit)


def _within(piece: Index, block: Block) -> Index:
    """A rectangle of the HF tensor, in the coordinates of the shard that holds `block`."""
    front = len(block.shard_index) - len(piece)
    moved = [
        slice(shard.start + part.start - hf.start, shard.start + part.stop - hf.start)
        for part, hf, shard in zip(piece, block.hf_index, block.shard_index[front:], strict=True)
    ]
    return (*block.shard_index[:front], *moved)


def _rounds(
    wanted: Iterable[tuple[_Piece, int]], choice: _Choice, limit: int, concerns: Concerns
) -> tuple[tuple[Bucket, ...], ...]:
    """Puts each piece into the first round that has room for it at both ends."""
    rounds: list[dict[tuple[int, int], list[Transfer]]] = []
    sending: dict[tuple[int, bool], _Room] = defaultdict(_Room)
    receiving: dict[tuple[int, bool], _Room] = defaultdict(_Room)
    for piece, target in wanted:
        held = choice(piece, target)
        near = choice.near(held.rank, target)
        number = _take(sending[held.rank, near], receiving[target, near], piece.bytes, limit)
        while len(rounds) <= number:
            rounds.append(defaultdict(list))
        if concerns(held.rank, target):
            rounds[number][held.rank, target].append(piece.transfer(held, target))
    return tuple(
        tuple(
            Bucket(*pair, choice.local(*pair), tuple(sorted(batch, key=_narrowness))) for pair, batch in found.items()
        )
        for found in rounds
    )


def _narrowness(transfer: Transfer) -> int:
    """Wide dtypes come first in a bucket, so that all numbers are aligned."""
    return -(transfer.bytes // size(transfer.target_index))


class _Room:
    """Bytes of one rank on one kind of link in each round; `first` is the first round that is not nearly full."""

    def __init__(self) -> None:
        self.used: dict[int, int] = defaultdict(int)
        self.first = 0

    def take(self, number: int, count: int, limit: int) -> None:
        self.used[number] += count
        while self.used[self.first] > limit * 7 // 8:
            self.first += 1


def _take(one: _Room, other: _Room, count: int, limit: int) -> int:
    """Takes the first round that has room in both."""
    number, left = max(one.first, other.first), limit - count
    used_by_one, used_by_other = one.used, other.used
    while used_by_one[number] > left or used_by_other[number] > left:
        number += 1
    one.take(number, count, limit)
    other.take(number, count, limit)
    return number


@dataclass(frozen=True)
class Links:
    """Bytes per second and direction of one card, by default those of an H100 with one 400 Gb/s adapter."""

    within_node: float = 450e9
    between_nodes: float = 50e9


def wire_seconds(
    plan: Plan, trainers: Sequence[Member[Place]], workers: Sequence[Member[WorkerPlace]], links: Links
) -> float:
    """Seconds on the wire, if every round waits for its slowest rank and copies overlap with the wire."""
    return math.fsum(_round_seconds(buckets, trainers, workers, links) for buckets in plan.rounds)


def _round_seconds(
    buckets: Sequence[Bucket], trainers: Sequence[Member[Place]], workers: Sequence[Member[WorkerPlace]], links: Links
) -> float:
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    for bucket in buckets:
        source, target = trainers[bucket.source], workers[bucket.target]
        if not bucket.local:
            speed = links.within_node if source.node == target.node else links.between_nodes
            seconds["out of", source.card] += bucket.bytes / speed
            seconds["into", target.card] += bucket.bytes / speed
    return max(seconds.values(), default=0.0)
