"""`cascade bench control`: what the ranks of a large job cost each other beside their work, on one machine.

The members of a refit are threads that run the product's own functions over a store that counts. Only their connections
are left out. A plan is measured in a process of its own. Seconds are those of a processor.
"""

import json
import multiprocessing
import resource
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from rich.console import Console
from rich.table import Table

from cascade_rl.engine import models
from cascade_rl.engine.core.settings import ParallelConfig
from cascade_rl.engine.models.hf_config import HfConfig
from cascade_rl.engine.models.name_map import Cut
from cascade_rl.engine.refit import group
from cascade_rl.engine.refit.plan import Member, Plan
from cascade_rl.engine.refit.vllm_map import WorkerPlace, worker_shards
from cascade_rl.launchers.bench.counting_store import CountingStore

NANO = Path(models.__file__).parent / "published/nemotron_3_nano_30b_a3b"
PARALLEL = ParallelConfig(tensor=4, context=4, expert=16, sequence=True)  # short stages of cascade2_30b_a3b.py, H100
WORKERS, CARDS_PER_NODE = 4, 8  # of an engine, of a node
SPREAD_S = 1.0  # between the first worker that has its weights and the last
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Cost:
    """seconds     of the member for which they are most
    megabytes   what it holds for a plan, or what it moves at the store
    operations  at the store, for a meeting and one refit: of the member with most of them, and of all members
    """

    seconds: float
    megabytes: float
    operations: int = 0
    all_operations: int = 0


class Wires(group.Group):
    """The process group of a refit, without its connections: nothing is sent."""

    def __init__(self, store: Any, rank: int, trainers: Any, workers: Any, verdicts: Any, *others: Any) -> None:
        self.store, self.rank, self.trainers, self.workers, self.verdicts = store, rank, trainers, workers, verdicts
        self.device, self.seconds = others

    def connect(self, pairs: Any) -> None: ...


@dataclass
class Meeting:
    """`ranks` trainer ranks and as many workers, who meet and refit once; nobody has anything to send.

    planned  what one of them would have made its plan from
    seconds  of each member, on a processor: for the meeting, and for the verdicts
    """

    hf: HfConfig
    ranks: int
    spread_s: float = SPREAD_S
    store: CountingStore = field(default_factory=CountingStore)
    planned: tuple = ()
    seconds: list[tuple[float, float]] = field(default_factory=list)

    def run(self) -> None:
        """Raises RuntimeError if a member did not come to the end."""
        self._own = threading.local()
        terms = group.Terms(self.hf, PARALLEL, self.ranks, self.ranks)
        found = [_found(self.hf, _place(worker)) for worker in range(WORKERS)]
        members = [threading.Thread(target=self._trainer, args=(rank, terms)) for rank in range(self.ranks)]
        members += [
            threading.Thread(target=self._worker, args=(worker, found[worker % WORKERS]))
            for worker in range(self.ranks)
        ]
        with (
            mock.patch.object(group, "Group", Wires),
            mock.patch.object(group, "PrefixStore", lambda _, store: store),
            mock.patch.object(group, "make_plan", self._plan),
            mock.patch.object(group, "whereabouts", self._where),
            mock.patch.object(group, "_check", lambda *_: None),
        ):
            for member in members:
                member.start()
            for member in members:
                member.join()
        if len(self.seconds) < len(members):
            raise RuntimeError(f"{len(members) - len(self.seconds)} of {len(members)} members failed")

    def _trainer(self, rank: int, terms: group.Terms) -> None:
        self._own.number = rank
        sender = group.join_as_trainer(self.store, rank, terms, {}, CPU)  # type: ignore[arg-type]
        met = time.thread_time()
        sender.send(1)
        self.seconds.append((met, time.thread_time() - met))

    def _worker(self, worker: int, found: dict[str, torch.Tensor]) -> None:
        self._own.number, rank = worker, self.ranks + worker
        receiver = group.join_as_worker(self.store, rank, _place(worker), found, CPU)  # type: ignore[arg-type]
        met = time.thread_time()
        time.sleep(self.spread_s * worker / self.ranks)
        receiver.receive(1, mock.Mock())
        self.seconds.append((met, time.thread_time() - met))

    def _plan(self, *arguments: Any) -> Plan:
        self.planned = self.planned or arguments
        return Plan((), 0)

    def _where(self, _: torch.device) -> tuple[str, str]:
        node = f"node {self._own.number // CARDS_PER_NODE}"
        return f"{node} card {self._own.number}", node


def run(json_path: Path | None, machine: str, ranks: int) -> int:
    """Prints the costs, and writes them to `json_path` if it is given."""
    costs = measure(ranks)
    table = Table("phase", "s", "MB", "store operations", "of all", title=f"{ranks} trainer ranks, {ranks} workers")
    for phase, cost in costs.items():
        numbers = f"{cost.seconds:.3f}", f"{cost.megabytes:.1f}", f"{cost.operations:,}", f"{cost.all_operations:,}"
        table.add_row(phase, *numbers)
    console = Console(highlight=False)
    console.print(table)
    console.print(f"the busiest member of each phase, on {machine}")
    if json_path:
        phases = {phase: asdict(cost) for phase, cost in costs.items()}
        json_path.write_text(json.dumps({"machine": machine, "ranks": ranks, "phases": phases}, indent=2) + "\n")
    return 0


def measure(ranks: int) -> Mapping[str, Cost]:
    """The cost of each phase by its name."""
    meeting = Meeting(models.read_config(NANO), ranks)
    meeting.run()
    store, (meet, judge) = meeting.store, map(max, zip(*meeting.seconds, strict=True))
    return {
        "plan, once": _in_a_process(_plan, meeting.planned),
        "meeting, once": Cost(meet, store.megabytes(), *store.most_and_all()),
        "verdicts, each refit": Cost(judge, 0.0),
    }


def _place(worker: int) -> WorkerPlace:
    return WorkerPlace(Cut(worker % WORKERS, WORKERS))


def _found(hf: HfConfig, place: WorkerPlace) -> dict[str, torch.Tensor]:
    shards = worker_shards(hf, place)
    return {shard.name: torch.empty(shard.shape, dtype=torch.bfloat16, device="meta") for shard in shards}


def _plan(
    hf: HfConfig, trainers: list[Member], workers: list[Member], itemsize: Any, bucket_bytes: int, concerns: Any
) -> Cost:
    """Of the plan itself."""
    before, begun = _resident(), time.process_time()
    group.make_plan(hf, trainers, workers, itemsize, bucket_bytes, concerns)
    return Cost(time.process_time() - begun, _resident() - before)


def _resident() -> float:
    """Most megabytes that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def _in_a_process(work: Callable[..., Cost], arguments: tuple) -> Cost:
    reader, writer = multiprocessing.get_context("fork").Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=lambda: writer.send(work(*arguments)))
    process.start()
    found = reader.recv()
    process.join()
    return found
