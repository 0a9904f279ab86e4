"""`cascade bench refit`: bytes sent against the lower bound, and time against gather-and-broadcast.

The ranks are processes on this machine that communicate over gloo. The planned wire time of a 30B model is printed too.
"""

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from math import prod
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.distributed import BroadcastOptions, PrefixStore, ProcessGroupGloo, TCPStore

from cascade_rl.engine import models
from cascade_rl.engine.core.settings import ParallelConfig
from cascade_rl.engine.models import family_of
from cascade_rl.engine.models.name_map import Block, Cut, Place, Shard
from cascade_rl.engine.models.places import place_of
from cascade_rl.engine.refit.plan import Links, Member, Plan, make_plan
from cascade_rl.engine.refit.transport import Group, Receiver, Sender
from cascade_rl.engine.refit.verdicts import Verdicts
from cascade_rl.engine.refit.vllm_map import WorkerPlace, WorkerShard, worker_shards
from cascade_rl.launchers.bench.planned_refit import PlannedRefit, planned_refit
from cascade_rl.launchers.local.held_port import held_port

PUBLISHED = Path(models.__file__).parent / "published"
SCALES = {"small": 1, "medium": 2, "large": 4}
PARALLEL, TRAINERS, WORKERS = ParallelConfig(tensor=2, expert=2, sequence=True), 2, 2
BUCKET_BYTES = 8 << 20
ROUNDS, SECONDS = 5, 60.0
TIMEOUT = timedelta(seconds=SECONDS)
CPU = torch.device("cpu")


def bench_model(scale: int) -> dict[str, Any]:
    """A small Nemotron-3-Nano whose widths are proportional to `scale`."""
    nano = json.loads((PUBLISHED / "nemotron_3_nano_30b_a3b/config.json").read_text())
    return nano | {
        "hybrid_override_pattern": "MEM*E",
        "hidden_size": 256 * scale,
        "vocab_size": 4096 * scale,
        "num_attention_heads": 8,
        "head_dim": 32 * scale,
        "mamba_num_heads": 16,
        "mamba_head_dim": 32 * scale,
        "n_routed_experts": 16,
        "moe_intermediate_size": 128 * scale,
        "moe_shared_expert_intermediate_size": 256 * scale,
    }


def trainers(same_host: bool) -> list[Member[Place]]:
    return [Member(place_of(rank, TRAINERS, PARALLEL), _card(rank, same_host), "") for rank in range(TRAINERS)]


def workers(same_host: bool) -> list[Member[WorkerPlace]]:
    return [Member(WorkerPlace(Cut(i, WORKERS)), _card(TRAINERS + i, same_host), "") for i in range(WORKERS)]


def _card(rank: int, same_host: bool) -> str:
    return "host" if same_host else f"card {rank}"


@dataclass(frozen=True)
class Measured:
    """Results for one model size: bytes of one refit over all ranks, seconds of the fastest of ROUNDS refits."""

    numbers: int
    lower_bound_bytes: int
    payload_bytes: int
    header_bytes: int
    seconds: float
    same_host_seconds: float
    gather_seconds: float
    gather_bytes: int

    @property
    def bytes_over_lower_bound(self) -> float:
        return (self.payload_bytes + self.header_bytes) / self.lower_bound_bytes

    @property
    def times_faster(self) -> float:
        return self.gather_seconds / self.seconds


def run(json_path: Path | None, machine: str) -> int:
    """Prints the results, and writes them to `json_path` if it is given."""
    measured = {name: measure(bench_model(scale)) for name, scale in SCALES.items()}
    planned = {name: planned_wire(first_card) for name, first_card in (("same cards", 0), ("other cards", 16))}
    console = Console(highlight=False)
    console.print(_table(measured))
    for name, plan in planned.items():
        console.print(f"30B-A3B, TP2 PP2 EP8 on 16 H100 to four TP4 engines on the {name}: {plan} (target 0.3 s)")
    console.print(f"on {machine}")
    if json_path:
        sizes = {
            name: asdict(m) | {"bytes_over_lower_bound": m.bytes_over_lower_bound, "times_faster": m.times_faster}
            for name, m in measured.items()
        }
        json_path.write_text(
            json.dumps(
                {"machine": machine, "sizes": sizes, "planned": {name: asdict(plan) for name, plan in planned.items()}},
                indent=2,
            )
            + "\n"
        )
    return 0


def _table(measured: dict[str, Measured]) -> Table:
    title = f"refit of TP2 EP2 to TP2, {TRAINERS} + {WORKERS} processes over gloo, best of {ROUNDS}"
    table = Table("model", "MB sent", "/ lower bound", "s", "gather s", "speed-up", "shared memory s", title=title)
    for name, m in measured.items():
        table.add_row(
            f"{name}, {m.numbers / 1e6:.1f}M",
            f"{m.payload_bytes / 1e6:.1f}",
            f"{m.bytes_over_lower_bound:.4f}",
            f"{m.seconds:.3f}",
            f"{m.gather_seconds:.3f}",
            f"{m.times_faster:.1f}",
            f"{m.same_host_seconds:.3f}",
        )
    return table


def planned_wire(first_card: int) -> PlannedRefit:
    """From TP2 PP2 EP8 on two nodes of eight H100 to four TP4 engines on the cards from `first_card` on."""
    hf = models.read_config(PUBLISHED / "nemotron_3_nano_30b_a3b")
    parallel = ParallelConfig(tensor=2, pipeline=2, expert=8, sequence=True)
    return planned_refit(hf, parallel, 16, 4, 4, Links(), first_card=first_card)


def measure(hf: dict[str, Any]) -> Measured:
    plans = {
        same: make_plan(hf, trainers(same), workers(same), lambda parameter: 4, BUCKET_BYTES) for same in (False, True)
    }
    found = _on_ranks(partial(_rank, hf, plans))
    slowest = {
        kind: min(max(times) for times in zip(*(f["seconds"][kind] for f in found), strict=True)) for kind in KINDS
    }
    sent = {kind: sum(f["bytes"][kind] for f in found) // (ROUNDS + 1) for kind in ("payload", "headers", "gather")}
    return Measured(
        numbers=family_of(hf).name_map(hf).parameter_count(),
        lower_bound_bytes=plans[False].lower_bound,
        payload_bytes=sent["payload"],
        header_bytes=sent["headers"],
        seconds=slowest["refit"],
        same_host_seconds=slowest["shared"],
        gather_seconds=slowest["gather"],
        gather_bytes=sent["gather"],
    )


KINDS = ("refit", "shared", "gather")


def _rank(hf: dict[str, Any], plans: dict[bool, Plan], store: TCPStore, rank: int) -> dict[str, Any]:
    """Runs the three transfers in turn on this rank. Returns their times and bytes."""
    torch.set_num_threads(1)
    shards = family_of(hf).name_map(hf).shards(trainers(False)[rank].place) if rank < TRAINERS else []
    held = {shard.name: torch.rand(shard.shape) for shard in shards}
    mine = worker_shards(hf, workers(False)[rank - TRAINERS].place) if rank >= TRAINERS else []
    parameters = Parameters(mine)
    dtypes = {shard.name: torch.float32 for shard in worker_shards(hf, WorkerPlace())}
    groups, ways = list[Group](), dict[str, Callable[[int], None]]()
    for kind, plan in zip(KINDS, (plans[False], plans[True]), strict=False):
        own = PrefixStore(kind, store)
        verdicts = Verdicts(own, range(WORKERS))
        group = Group(own, rank, range(TRAINERS), range(WORKERS), verdicts, CPU, SECONDS)
        groups.append(group)
        if rank < TRAINERS:
            ways[kind] = Sender(group, plan, held, dtypes).send
        else:
            ways[kind] = partial(_receive, Receiver(group, plan, dtypes), parameters)
    gather = GatherAndBroadcast(hf, PrefixStore("gather", store), rank, shards, held, mine, parameters.tensors)
    ways["gather"] = gather
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for version in range(ROUNDS + 1):  # the first round is a warm-up
        for kind, way in ways.items():
            gather.barrier()
            start = time.perf_counter()
            way(version)
            gather.barrier()
            if version:
                seconds[kind].append(time.perf_counter() - start)
    return {
        "seconds": seconds,
        "bytes": {"gather": gather.sent, **{k: groups[0].sent[k] for k in ("payload", "headers")}},
    }


def _receive(receiver: Receiver, parameters: "Parameters", version: int) -> None:
    receiver.receive(version, parameters)


class Parameters:
    def __init__(self, shards: list[WorkerShard]) -> None:
        self.tensors = {shard.name: torch.zeros(shard.shape) for shard in shards}

    def tensor(self, parameter: str) -> Tensor:
        return self.tensors[parameter]

    def filled(self, parameter: str) -> None:
        pass


class GatherAndBroadcast:
    """The baseline: gathers whole tensors on rank 0 and broadcasts them to every worker, which keeps its slices.

    Its buckets have the size of the refit's. A block that several ranks hold is sent by one of them.
    """

    def __init__(
        self,
        hf: dict[str, Any],
        store: PrefixStore,
        rank: int,
        shards: list[Shard],
        held: dict[str, Tensor],
        mine: list[WorkerShard],
        parameters: dict[str, Tensor],
    ) -> None:
        self.rank, self.held, self.parameters, self.sent = rank, held, parameters, 0
        self.group: Any = ProcessGroupGloo(PrefixStore("all", store), rank, TRAINERS + WORKERS, TIMEOUT)
        self.engines: Any = None
        if rank == 0 or rank >= TRAINERS:
            place = max(0, rank - TRAINERS + 1)
            self.engines = ProcessGroupGloo(PrefixStore("engines", store), place, WORKERS + 1, TIMEOUT)
        shapes = {name: tensor.shape for name, tensor in family_of(hf).name_map(hf).hf_tensors().items()}
        self.buckets = list(_buckets(shapes))
        self.owned = [list(_exported(hf, trainer)) for trainer in trainers(False)]
        self.wanted: dict[str, list[tuple[WorkerShard, Block]]] = {}
        for shard in mine:
            for block in shard.blocks:
                self.wanted.setdefault(block.hf_name, []).append((shard, block))

    def barrier(self) -> None:
        self.group.barrier().wait()

    def __call__(self, version: int) -> None:
        for bucket in self.buckets:
            if self.rank < TRAINERS:
                whole = self._gather(bucket)
            else:
                whole = {name: torch.empty(shape) for name, shape in bucket.items()}
            if self.engines is not None:
                self._broadcast(whole)
            if self.rank >= TRAINERS:
                self._keep(whole)

    def _gather(self, bucket: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
        whole = {name: torch.empty(shape) for name, shape in bucket.items()} if self.rank == 0 else {}
        for owner, owned in enumerate(self.owned):
            blocks = [(shard, block) for shard, block in owned if block.hf_name in bucket]
            if owner == self.rank:
                local = [self.held[shard.name][block.shard_index] for shard, block in blocks]
            if owner and owner == self.rank and blocks:
                packed = torch.cat([part.flatten() for part in local])
                self.sent += packed.nbytes
                self.group.send([packed], 0, 0).wait()
            if self.rank == 0:
                if owner and blocks:
                    sizes = [[axis.stop - axis.start for axis in block.hf_index] for _, block in blocks]
                    packed = torch.empty(sum(map(prod, sizes)))
                    self.group.recv([packed], owner, 0).wait()
                    local = [p.view(s) for p, s in zip(packed.split(list(map(prod, sizes))), sizes, strict=True)]
                for (_, block), part in zip(blocks, local if blocks else [], strict=True):
                    whole[block.hf_name][block.hf_index] = part
        return whole

    def _broadcast(self, whole: dict[str, Tensor]) -> None:
        options = BroadcastOptions()
        options.rootRank = options.rootTensor = 0
        packed = torch.cat([tensor.flatten() for tensor in whole.values()])
        if self.rank == 0:
            self.sent += packed.nbytes * WORKERS
        self.engines.broadcast([packed], options).wait()
        start = 0
        for tensor in whole.values():
            tensor.copy_(packed[start : start + tensor.numel()].view(tensor.shape))
            start += tensor.numel()

    def _keep(self, whole: dict[str, Tensor]) -> None:
        for name, tensor in whole.items():
            for shard, block in self.wanted.get(name, ()):
                part = tensor[block.hf_index]
                self.parameters[shard.name][block.shard_index] = -part.exp() if shard.minus_exp else part


def _exported(hf: dict[str, Any], trainer: Member[Place]) -> Iterator[tuple[Shard, Block]]:
    for shard in family_of(hf).name_map(hf).shards(trainer.place):
        for block in shard.blocks if shard.exports else ():
            yield shard, block


def _buckets(shapes: dict[str, tuple[int, ...]]) -> Iterator[dict[str, tuple[int, ...]]]:
    bucket: dict[str, tuple[int, ...]] = {}
    for name, shape in shapes.items():
        if bucket and 4 * (sum(map(prod, bucket.values())) + prod(shape)) > BUCKET_BYTES:
            yield bucket
            bucket = {}
        bucket[name] = shape
    yield bucket


def _on_ranks(work: Callable[[TCPStore, int], Any]) -> list[Any]:
    """Runs `work(store, rank)` in forked processes. Rank 0 hosts the store, because a store does not survive a fork."""
    fork = multiprocessing.get_context("fork")
    pipes, processes = [], []
    with held_port() as port:
        for rank in range(TRAINERS + WORKERS):
            reader, writer = fork.Pipe(duplex=False)
            processes.append(fork.Process(target=_process, args=(work, port, rank, writer), daemon=True))
            processes[-1].start()
            writer.close()
            pipes.append(reader)
        found = [reader.recv() for reader in pipes]
    for process in reversed(processes):  # rank 0 last: the others use its store
        process.terminate()
    return found


def _process(work: Callable[[TCPStore, int], Any], port: int, rank: int, writer: Connection) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    writer.send(work(TCPStore("127.0.0.1", port, is_master=rank == 0, wait_for_workers=False), rank))
    signal.pause()
