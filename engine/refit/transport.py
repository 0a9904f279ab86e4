"""Carries out a refit plan: packed buckets between trainer ranks and workers, in a process group made for it.

The group is built directly over a store, separate from the default groups of Megatron and vLLM. In each round a
trainer rank casts its slices to the worker's dtype, packs one buffer per worker and sends all buffers at once. Two
rounds are in flight. Ranks on one card exchange buckets through memory that both processes map, without the wire.

A small header precedes each bucket: version, round and size. From it a worker detects and names a sender that has
other weights or leaves out a bucket, before it takes a byte. If a refit is checked, a check of each slice follows the
bucket. The sender computes it from its own shard, the worker from its own parameter. The objection of a worker reaches
every trainer rank as its verdict.
"""

import hashlib
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.distributed import PrefixStore, ProcessGroupGloo, Store

from cascade_rl.engine.backend.wire import mapped, payload_group, settle, shared
from cascade_rl.engine.cluster.store import get, put
from cascade_rl.engine.core.settings import Check
from cascade_rl.engine.refit.plan import Bucket, Plan, RefitError, Transfer
from cascade_rl.engine.refit.verdicts import Verdicts

CHECK_BYTES: dict[Check, int] = {"none": 0, "sums": 8, "digests": 32}
CHECK_NUMBERS = list(CHECK_BYTES)
WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}
ROUNDS_IN_FLIGHT = 2
HEADER_WORDS = 4
END = -1
ALIGNMENT = 8
VERDICT_SECONDS = 10.0


class Destination(Protocol):
    """The parameters of a worker while they are loaded."""

    def tensor(self, parameter: str) -> Tensor:
        """The tensor for the numbers of a parameter, in the shape of its `WorkerShard`. Its padding is already zero."""

    def filled(self, parameter: str) -> None:
        """Called when all numbers of the parameter have arrived and have passed the checks, if any."""


class Header(NamedTuple):
    """What precedes a bucket. `number` is its round, or END after the last bucket of a sender."""

    version: int
    number: int
    bytes: int
    check: int


class Group:
    """One rank of the process group of a refit: trainer ranks first, then workers.

    Every rank constructs it at the same time. `trainers` and `workers` are the members' numbers in the job, of which
    messages speak; `rank` and the numbers of a plan are positions among them. `verdicts` are those of the whole job.
    `sent` counts the bytes that this rank has put on the wire, as "payload" (checks included) and "headers". Payload
    uses NCCL between CUDA devices and gloo between CPUs, headers use gloo.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        trainers: Sequence[int],
        workers: Sequence[int],
        verdicts: Verdicts,
        device: torch.device,
        seconds: float,
    ) -> None:
        self.store, self.rank, self.trainers, self.workers, self.device = store, rank, trainers, workers, device
        self.sent: Counter[str] = Counter()
        self.verdicts, self.seconds = verdicts, seconds
        size, timeout = len(trainers) + len(workers), timedelta(seconds=seconds)
        self._headers: Any = ProcessGroupGloo(PrefixStore("headers", store), rank, size, timeout)
        self._payload: Any = payload_group(PrefixStore("payload", store), rank, size, device, timeout)

    def rank_of(self, target: int) -> int:
        """The rank in this group of the plan's worker `target`."""
        return len(self.trainers) + target

    def connect(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Opens this rank's connections to its `pairs` of a sender and a receiver.

        NCCL makes a communicator of each pair at its first transfer, and both ranks wait there for each other. All
        ranks go through their pairs in one order, so no ranks wait in a circle.
        """
        byte = torch.zeros(1, dtype=torch.uint8, device=self.device)
        for source, target in sorted(pairs):
            verb, peer = ("send", target) if self.rank == source else ("recv", source)
            getattr(self._payload, verb)([byte], peer, 1).wait()

    def send_header(self, header: Sequence[int], to: int) -> "Flight":
        words = torch.tensor(header, dtype=torch.int64)
        self.sent["headers"] += words.nbytes
        return Flight([self._headers.send([words], to, 0)], [words])

    def receive_header(self, source: int) -> Header | None:
        """The next header from a rank, or None on timeout."""
        words = torch.empty(HEADER_WORDS, dtype=torch.int64)
        try:
            self._headers.recv([words], source, 0).wait()
        except RuntimeError as error:
            if "Timed out" in str(error):
                return None
            raise
        return Header(*words.tolist())

    def send(self, buffers: Mapping[int, Tensor]) -> "Flight":
        """Sends each rank its buffer, all at the same time."""
        self.sent["payload"] += sum(buffer.nbytes for buffer in buffers.values())
        return self._exchange("send", buffers)

    def receive(self, buffers: Mapping[int, Tensor]) -> "Flight":
        """Fills each buffer from its rank, all at the same time."""
        return self._exchange("recv", buffers)

    def _exchange(self, verb: str, buffers: Mapping[int, Tensor]) -> "Flight":
        # Not coalesced: NCCL would run a batch on the communicator of all ranks. It refuses one with two ranks of a
        # card, and waits for ranks that have nothing to send (ProcessGroupNCCL.cpp, pointToPoint).
        works = [getattr(self._payload, verb)([buffer], peer, 1) for peer, buffer in buffers.items()]
        return Flight(works, list(buffers.values()))

    def close(self) -> None:
        """Closes the connections, which ends whatever a peer waits for."""
        self._headers = self._payload = None


class Flight(NamedTuple):
    """Transfers that are under way, and the tensors that must live until they are done."""

    works: list[Any]
    kept: list[Tensor]

    def wait(self) -> None:
        for work in self.works:
            work.wait()
        self.works.clear()  # a work keeps its connection open


class Shared:
    """One buffer per round in flight, which a trainer rank and a worker on the same card both map."""

    def __init__(self, slots: Sequence[Tensor]) -> None:
        self._slots = slots

    @classmethod
    def offer(cls, group: Group, key: str, count: int) -> "Shared":
        """The trainer rank's side."""
        slots, by = shared(group.device, ROUNDS_IN_FLIGHT, count)
        put(group.store, key, by)
        return cls(slots)

    @classmethod
    def accept(cls, group: Group, key: str, count: int) -> "Shared":
        """The worker's side."""
        return cls(mapped(group.device, get(group.store, key), ROUNDS_IN_FLIGHT, count))

    def slot(self, number: int, count: int) -> Tensor:
        return self._slots[number % ROUNDS_IN_FLIGHT][:count]


def _remote_pairs(group: Group, rounds: Sequence[Sequence[Bucket]]) -> set[tuple[int, int]]:
    """Ranks in the group of the senders and receivers of all buckets that use the wire."""
    buckets = (bucket for buckets in rounds for bucket in buckets if not bucket.local)
    return {(bucket.source, group.rank_of(bucket.target)) for bucket in buckets}


def _shared_sizes(rounds: Sequence[Sequence[Bucket]]) -> dict[tuple[int, int], int]:
    """For each pair on one card, the bytes of its largest bucket, checks included."""
    sizes: Counter[tuple[int, int]] = Counter()
    for buckets in rounds:
        for bucket in buckets:
            if bucket.local:
                pair = bucket.source, bucket.target
                sizes[pair] = max(sizes[pair], _aligned(_length(bucket, "digests")))
    return sizes


def _buffers(group: Group, rounds: Sequence[Sequence[Bucket]]) -> Sequence[Tensor]:
    """One per round in flight, large enough for all buckets of any round that use the wire."""
    totals = (sum(_aligned(_length(b, "digests")) for b in buckets if not b.local) for buckets in rounds)
    longest = max(totals, default=0)
    return torch.empty(ROUNDS_IN_FLIGHT, longest, dtype=torch.uint8, device=group.device).unbind()


def _length(bucket: Bucket, check: Check) -> int:
    return bucket.bytes + len(bucket.transfers) * CHECK_BYTES[check]


def _aligned(count: int) -> int:
    return -(-count // ALIGNMENT) * ALIGNMENT


class Sender:
    """A trainer rank's part of every refit.

    tensors  this rank's parameters and buffers by their Megatron names; they may change between two refits
    dtypes   those in which vLLM holds each of its parameters

    Raises RefitError if the plan asks for a tensor that this rank does not have.
    """

    def __init__(self, group: Group, plan: Plan, tensors: Mapping[str, Tensor], dtypes: Mapping[str, torch.dtype]):
        self.group, self._tensors, self._dtypes = group, tensors, dtypes
        self._rounds = plan.sent_by(group.rank)
        for bucket in (bucket for buckets in self._rounds for bucket in buckets):
            for transfer in bucket.transfers:
                if transfer.shard not in tensors:
                    own = group.trainers[group.rank]
                    raise RefitError(f"trainer rank {own} has no {transfer.shard}, which {transfer} needs")
        self._targets = sorted({bucket.target for buckets in self._rounds for bucket in buckets})
        self._shared = {
            target: Shared.offer(group, f"shared/{source}/{target}", count)
            for (source, target), count in _shared_sizes(self._rounds).items()
        }
        self._buffers = _buffers(group, self._rounds)
        group.connect(_remote_pairs(group, self._rounds))

    @property
    def bytes(self) -> int:
        """That this rank sends in a refit, within its card too, without checks and headers."""
        return sum(bucket.bytes for buckets in self._rounds for bucket in buckets)

    @torch.no_grad()
    def send(self, version: int, check: Check = "none") -> None:
        """Called on all ranks. Returns when every worker has all weights. Raises RefitError if a worker objects."""
        try:
            flying: deque[tuple[list[Flight], list[int]]] = deque()
            for number, buckets in enumerate(self._rounds):
                if len(flying) == ROUNDS_IN_FLIGHT:
                    self._land(*flying.popleft())
                flying.append(self._start(Header(version, number, 0, CHECK_NUMBERS.index(check)), buckets, check))
            while flying:
                self._land(*flying.popleft())
            end = Header(version, END, 0, CHECK_NUMBERS.index(check))
            for target in self._targets:
                self.group.send_header(end, self.group.rank_of(target)).wait()
        except RuntimeError as broken:  # a worker that objects closes its connections
            self.group.verdicts.wait(VERDICT_SECONDS)
            raise RefitError(f"the refit to weight version {version} broke off: {broken}") from broken
        self.group.verdicts.wait(self.group.seconds)

    def _start(self, header: Header, buckets: list[Bucket], check: Check) -> tuple[list[Flight], list[int]]:
        """Returns the transfers under way, and the workers on this card, which confirm that they took their bucket."""
        group, flights, remote = self.group, list[Flight](), dict[int, Tensor]()
        buffer = self._buffers[header.number % ROUNDS_IN_FLIGHT]
        for bucket in buckets:
            length = _length(bucket, check)
            if bucket.local:
                packed = self._shared[bucket.target].slot(header.number, length)
            else:
                packed, buffer = buffer[:length], buffer[_aligned(length) :]
                remote[group.rank_of(bucket.target)] = packed
            self._pack(bucket, packed, check)
        settle(group.device)
        for bucket in buckets:
            own = header._replace(bytes=_length(bucket, check))
            flights.append(group.send_header(own, group.rank_of(bucket.target)))
        flights.append(group.send(remote))
        return flights, [group.rank_of(bucket.target) for bucket in buckets if bucket.local]

    def _land(self, flights: list[Flight], local: list[int]) -> None:
        for flight in flights:
            flight.wait()
        for worker in local:
            self.group.receive_header(worker)

    def _pack(self, bucket: Bucket, packed: Tensor, check: Check) -> None:
        for transfer, room in _rooms(bucket, packed, self._dtypes):
            source = self._slice(transfer)
            room.view(source.shape).copy_(source)
        if check != "none":
            slices = [self._slice(t).to(self._dtypes[t.parameter]) for t in bucket.transfers]
            packed[bucket.bytes :].copy_(_checks(slices, check))

    def _slice(self, transfer: Transfer) -> Tensor:
        """The numbers that vLLM holds, still in this rank's dtype."""
        source = self._tensors[transfer.shard][transfer.source_index]
        return -torch.exp(source.float()) if transfer.minus_exp else source


class Coming(NamedTuple):
    """A round that a worker waits for; `packed` holds its buffers by trainer rank."""

    header: Header
    buckets: list[Bucket]
    packed: dict[int, Tensor]
    flight: Flight


class Receiver:
    """A worker's part of every refit."""

    def __init__(self, group: Group, plan: Plan, dtypes: Mapping[str, torch.dtype]):
        self.group, self._dtypes = group, dtypes
        self._target = group.rank - len(group.trainers)
        self._coming: deque[Coming] = deque()
        self._rounds = plan.received_by(self._target)
        self._sources = sorted({bucket.source for buckets in self._rounds for bucket in buckets})
        self._slices = Counter(
            transfer.parameter for buckets in self._rounds for bucket in buckets for transfer in bucket.transfers
        )
        self._shared = {
            source: Shared.accept(group, f"shared/{source}/{target}", count)
            for (source, target), count in _shared_sizes(self._rounds).items()
        }
        self._buffers = _buffers(group, self._rounds)
        group.connect(_remote_pairs(group, self._rounds))

    @torch.no_grad()
    def receive(self, version: int, destination: Destination, check: Check = "none") -> None:
        """Fills `destination`. Raises RefitError for anything that is wrong; every trainer rank raises it too."""
        try:
            self._receive(Header(version, END, 0, CHECK_NUMBERS.index(check)), destination, check)
        except RefitError as objection:
            self.group.verdicts.object(self.group.workers[self._target], objection)
            self._hang_up()
            raise
        except RuntimeError as broken:  # whoever closed its connections first reports the cause
            self._hang_up()
            raise RefitError(f"the refit to weight version {version} broke off: {broken}") from broken
        self.group.verdicts.accept(self.group.workers[self._target])

    def _hang_up(self) -> None:
        self._coming.clear()
        self.group.close()

    def _receive(self, end: Header, destination: Destination, check: Check) -> None:
        missing, coming = Counter(self._slices), self._coming
        for number, buckets in enumerate(self._rounds):
            coming.append(self._start(end._replace(number=number), buckets, check))
            if len(coming) == ROUNDS_IN_FLIGHT:
                self._take(coming.popleft(), missing, destination, check)
        while coming:
            self._take(coming.popleft(), missing, destination, check)
        for source in self._sources:
            self._expect(source, end, "the mark after its last bucket")

    def _start(self, header: Header, buckets: list[Bucket], check: Check) -> "Coming":
        buffer, packed = self._buffers[header.number % ROUNDS_IN_FLIGHT], dict[int, Tensor]()
        for bucket in buckets:
            length = _length(bucket, check)
            self._expect(bucket.source, header._replace(bytes=length), f"a bucket with {_named(bucket.transfers)}")
            if bucket.local:
                packed[bucket.source] = self._shared[bucket.source].slot(header.number, length)
            else:
                packed[bucket.source], buffer = buffer[:length], buffer[_aligned(length) :]
        remote = {bucket.source: packed[bucket.source] for bucket in buckets if not bucket.local}
        return Coming(header, buckets, packed, self.group.receive(remote))

    def _expect(self, source: int, wanted: Header, what: str) -> None:
        found, name = self.group.receive_header(source), f"trainer rank {self.group.trainers[source]}"
        if found and found.version != wanted.version:
            raise RefitError(
                f"{name} sends weight version {found.version}, expected {wanted.version}: it does "
                "not take part in the same refit"
            )
        if found is None and wanted.number == END:
            raise RuntimeError(f"{name} never finished")  # it waits for another worker, which knows why
        if found != wanted:
            told = found or f"nothing for {self.group.seconds:.0f} s"
            raise RefitError(f"{name} left out {what}; expected {wanted}, found {told}")

    def _take(self, coming: "Coming", missing: Counter[str], destination: Destination, check: Check) -> None:
        coming.flight.wait()
        for bucket in coming.buckets:
            packed = coming.packed[bucket.source]
            for transfer, room in _rooms(bucket, packed, self._dtypes):
                target = destination.tensor(transfer.parameter)[transfer.target_index]
                target.copy_(room.view(target.shape))
            if check != "none":
                self._compare(bucket, packed, check, destination)
        settle(self.group.device)
        for bucket in coming.buckets:
            if bucket.local:
                self.group.send_header(coming.header, bucket.source).wait()
            for transfer in bucket.transfers:
                missing[transfer.parameter] -= 1
                if not missing[transfer.parameter]:
                    destination.filled(transfer.parameter)

    def _compare(self, bucket: Bucket, packed: Tensor, check: Check, destination: Destination) -> None:
        slices = [destination.tensor(t.parameter)[t.target_index] for t in bucket.transfers]
        sent = packed[bucket.bytes :].cpu().view(-1, CHECK_BYTES[check])
        wrong = (_checks(slices, check).cpu().view_as(sent) != sent).any(dim=1)
        if wrong.any():
            names = _named([bucket.transfers[i] for i in wrong.nonzero().flatten().tolist()])
            raise RefitError(
                f"the {check} of trainer rank {self.group.trainers[bucket.source]} and of this worker differ for "
                f"{names}: these weights are not those that were sent"
            )


def _rooms(bucket: Bucket, packed: Tensor, dtypes: Mapping[str, torch.dtype]) -> Iterator[tuple[Transfer, Tensor]]:
    """Each transfer's stretch of the buffer, [numbers of the slice] in its dtype; a slice is contiguous there."""
    start = 0
    for transfer in bucket.transfers:
        stretch = packed[start : start + transfer.bytes]
        yield transfer, stretch.view(dtypes[transfer.parameter])
        start += transfer.bytes


def _checks(slices: list[Tensor], check: Check) -> Tensor:
    """One check per slice, as bytes [slices * CHECK_BYTES]."""
    if check == "sums":
        sums = [slice_.view(WORDS[slice_.element_size()]).sum(dtype=torch.int64) for slice_ in slices]
        return torch.stack(sums).view(torch.uint8)
    digests = [
        hashlib.blake2b(slice_.cpu().contiguous().view(torch.uint8).numpy(), digest_size=32).digest()
        for slice_ in slices
    ]
    return torch.frombuffer(bytearray(b"".join(digests)), dtype=torch.uint8)


def _named(transfers: Sequence[Transfer]) -> str:
    first = ", ".join(map(str, transfers[:3]))
    return first + (f" and {len(transfers) - 3} more" if len(transfers) > 3 else "")
