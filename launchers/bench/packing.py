"""`cascade bench packing`: compares the batch planner with first-fit-decreasing and Karmarkar-Karp. Torch-free."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from heapq import heapify, heappop, heappush
from itertools import batched, chain
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cascade_rl.engine import models
from cascade_rl.engine.models.flops import SequenceCost, sequence_cost
from cascade_rl.engine.models.hf_config import read_config
from cascade_rl.engine.train.planner import Plan, packing_efficiency, plan_micro_batches

RANKS = (1, 8, 64)


@dataclass(frozen=True)
class Batch:
    """The lengths of a batch of sequences in tokens, and `cost`, the FLOPs of the model that they train."""

    name: str
    lengths: list[int]
    token_budget: int
    segment_multiple: int
    cost: SequenceCost

    @property
    def padded(self) -> list[int]:
        return [length + -length % self.segment_multiple for length in self.lengths]

    @property
    def costs(self) -> list[float]:
        return self.cost.of(self.padded)


@dataclass(frozen=True)
class Row:
    """How good a plan is.

    passes      micro-batches per rank
    efficiency  real tokens / token capacity of the micro-batches
    fullest     tokens of the fullest micro-batch / token budget; above 1 a GPU runs out of memory
    ranks       cost of the costliest rank / mean cost of the ranks
    slots       cost of the costliest micro-batch / mean cost of the micro-batches
    waiting     cost of the step if the ranks wait for each other in every pass / cost without waiting
    seconds     planning time
    """

    batch: str
    data_parallel: int
    planner: str
    passes: int
    efficiency: float
    fullest: float
    ranks: float
    slots: float
    waiting: float
    seconds: float


def recorded() -> Batch:
    """The sequence lengths of a real run. All its steps form one batch."""
    kept = json.loads((Path(__file__).parent / "recorded_lengths.json").read_text())
    lengths = list(chain.from_iterable(kept["steps"]))
    return Batch("recorded", lengths, kept["token_budget"], 1, sequence_cost(kept["hf_config"]))


def synthetic_30b() -> Batch:
    """A batch of the papers' size: 128 prompts x 16 answers of at most 49,152 tokens. Its lengths are synthetic.

    All distributions are log-normal. Prompts have a median of 400 tokens (sigma 0.8). The typical answer length of a
    prompt has a median of 8,000 tokens (sigma 0.7), and the answers of a prompt vary around it (sigma 0.5). Sequences
    are truncated at 49,152 tokens. The model is Nemotron-3-Nano with TP 2 and CP 4.
    """
    random = np.random.default_rng(0)
    prompts = random.lognormal(np.log(400), 0.8, 128)[:, None]
    answers = random.lognormal(np.log(8000), 0.7, 128)[:, None] * random.lognormal(0, 0.5, (128, 16))
    tokens = np.minimum(prompts + answers, 49_152).astype(int).ravel()
    hf_config = read_config(Path(models.__file__).parent / "published" / "nemotron_3_nano_30b_a3b")
    return Batch("synthetic 30B", (tokens - 1).tolist(), 49_152, 16, sequence_cost(hf_config))


def planner(batch: Batch, ranks: int) -> Plan:
    return plan_micro_batches(
        batch.lengths, batch.token_budget, batch.cost, ranks=ranks, segment_multiple=batch.segment_multiple
    )


def first_fit_decreasing(batch: Batch, ranks: int) -> Plan:
    """Deals the sequences out to the ranks in turn. Each rank packs its own; ranks with fewer passes add empty ones."""
    plan = [_first_fit(range(rank, len(batch.lengths), ranks), batch) for rank in range(ranks)]
    passes = max(map(len, plan))
    return [own + [[]] * (passes - len(own)) for own in plan]


def _first_fit(indices: Sequence[int], batch: Batch) -> list[list[int]]:
    padded = batch.padded
    packed: list[list[int]] = []
    room: list[int] = []
    for i in sorted(indices, key=lambda i: -padded[i]):
        into = next((b for b, free in enumerate(room) if free >= padded[i]), len(packed))
        if into == len(packed):
            packed.append([])
            room.append(batch.token_budget)
        packed[into].append(i)
        room[into] -= padded[i]
    return packed


def karmarkar_karp(batch: Batch, ranks: int) -> Plan:
    """The method of verl's verl/utils/seqlen_balancing.py.

    It balances the ranks by cost, with equally many sequences each. It then balances the micro-batches of each rank by
    cost. Their number is what the rank with the most tokens needs. No micro-batch is checked against the token budget.
    """
    costs, padded = batch.costs, batch.padded
    rising = sorted(range(len(costs)), key=costs.__getitem__)
    shares = _differencing([list(group) for group in batched(rising, ranks)], costs, ranks)
    passes = max(-(-sum(padded[i] for i in share) // batch.token_budget) for share in shares)
    return [_differencing([[i] for i in share], costs, passes) for share in shares]


def _differencing(groups: list[list[int]], costs: list[float], parts: int) -> list[list[int]]:
    """The largest differencing method of Karmarkar and Karp.

    It merges the two partitions with the largest spread, heavy parts with light ones, until one partition is left.
    Each of `groups` is an initial partition of at most `parts` items. Returns the parts, the costliest first.
    """
    heap = []
    for tie, group in enumerate(groups):
        split = sorted([(costs[i], [i]) for i in group] + [(0.0, [])] * (parts - len(group)), reverse=True)
        heap.append((split[-1][0] - split[0][0], tie, split))
    heapify(heap)
    while len(heap) > 1:
        (_, tie, one), (_, _, other) = heappop(heap), heappop(heap)
        joined = [(a + b, left + right) for (a, left), (b, right) in zip(one, reversed(other), strict=True)]
        joined.sort(key=lambda part: -part[0])
        heappush(heap, (joined[-1][0] - joined[0][0], tie, joined))
    return [indices for _, indices in heap[0][2]]


PLANNERS: dict[str, Callable[[Batch, int], Plan]] = {
    "planner": planner,
    "FF decreasing": first_fit_decreasing,
    "Karmarkar-Karp": karmarkar_karp,
}


def measure(batch: Batch, ranks: int, name: str) -> Row:
    started = time.perf_counter()
    plan = PLANNERS[name](batch, ranks)
    seconds = time.perf_counter() - started
    padded, costs = np.array(batch.padded), np.array(batch.costs)
    tokens = np.array([[padded[index].sum() for index in own] for own in plan])  # [ranks, slots]
    cost = np.array([[costs[index].sum() for index in own] for own in plan])
    return Row(
        batch=batch.name,
        data_parallel=ranks,
        planner=name,
        passes=len(plan[0]),
        efficiency=packing_efficiency(plan, batch.lengths, batch.token_budget),
        fullest=float(tokens.max() / batch.token_budget),
        ranks=float(cost.sum(1).max() / cost.sum(1).mean()),
        slots=float(cost.max() / cost.mean()),
        waiting=float(cost.max(0).sum() / cost.mean(0).sum()),
        seconds=seconds,
    )


def packing_table(batch: Batch, rows: list[Row]) -> Table:
    """The rows of one batch, with a section for each number of data-parallel ranks."""
    lengths = f"{len(batch.lengths):,} sequences, {sum(batch.lengths):,} tokens, longest {max(batch.lengths):,}"
    title = f"{batch.name}: {lengths}, budget {batch.token_budget:,}"
    table = Table(title=title, title_justify="left", collapse_padding=True)
    table.add_column("DP", justify="right")
    table.add_column("plan")
    for heading in ("passes", "efficiency", "fullest", "ranks", "slots", "waiting", "secs"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*_cells(row), end_section=row.planner == [*PLANNERS][-1])
    return table


def _cells(row: Row) -> list[str | Text]:
    fullest = Text(f"{row.fullest:.3f}", style="red" if row.fullest > 1 else "")
    costs = (f"{value:.3f}" for value in (row.ranks, row.slots, row.waiting))
    packed = (str(row.data_parallel), row.planner, str(row.passes), f"{row.efficiency:.4f}")
    return [*packed, fullest, *costs, f"{row.seconds:.2f}"]


def run(json_path: Path | None) -> int:
    """Prints one table per batch. `Row` explains the columns."""
    rows: list[Row] = []
    for batch in (recorded(), synthetic_30b()):
        measured = [measure(batch, ranks, name) for ranks in RANKS for name in PLANNERS]
        Console(highlight=False).print(packing_table(batch, measured))
        rows += measured
    if json_path:
        json_path.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return 0
