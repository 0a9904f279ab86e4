"""Plans a refit without the cluster: bytes, rounds and wire time, from the two layouts and the link speeds."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from cascade_rl.engine.core.settings import ParallelConfig
from cascade_rl.engine.models.hf_config import HfConfig
from cascade_rl.engine.models.name_map import Cut, Place
from cascade_rl.engine.models.places import place_of
from cascade_rl.engine.refit.neighbourhoods import neighbourhoods
from cascade_rl.engine.refit.plan import Links, Member, make_plan, wire_seconds
from cascade_rl.engine.refit.vllm_map import WorkerPlace

CARDS_PER_NODE, BFLOAT16 = 8, 2


@dataclass(frozen=True)
class PlannedRefit:
    """Bytes are sums over all ranks. Seconds and rounds are those of the slowest neighbourhood; `wire_seconds` comes
    from `engine.refit.plan.wire_seconds`."""

    plan_seconds: float
    wire_bytes: int
    lower_bound_bytes: int
    rounds: int
    wire_seconds: float

    def __str__(self) -> str:
        return (
            f"{self.wire_seconds:.3f} s on the wire for {self.wire_bytes / 1e9:.1f} GB (lower bound "
            f"{self.lower_bound_bytes / 1e9:.1f} GB) in {self.rounds} rounds, planned in {self.plan_seconds:.1f} s"
        )


def planned_refit(
    hf: HfConfig, parallel: ParallelConfig, ranks: int, engines: int, tensor: int, links: Links, *, first_card: int = 0
) -> PlannedRefit:
    """From `ranks` trainer ranks, eight a node, to `engines` of `tensor` workers on the cards from `first_card` on."""
    sources = [Member(place_of(rank, ranks, parallel), *_at(rank)) for rank in range(ranks)]
    targets = [
        Member(WorkerPlace(Cut(worker % tensor, tensor)), *_at(first_card + worker))
        for worker in range(engines * tensor)
    ]
    parts = [
        _planned(hf, [sources[rank] for rank in near.trainers], [targets[worker] for worker in near.workers], links)
        for near in neighbourhoods(sources, targets)
    ]
    return PlannedRefit(
        plan_seconds=max(part.plan_seconds for part in parts),
        wire_bytes=sum(part.wire_bytes for part in parts),
        lower_bound_bytes=sum(part.lower_bound_bytes for part in parts),
        rounds=max(part.rounds for part in parts),
        wire_seconds=max(part.wire_seconds for part in parts),
    )


def _planned(
    hf: HfConfig, sources: Sequence[Member[Place]], targets: Sequence[Member[WorkerPlace]], links: Links
) -> PlannedRefit:
    """Of one neighbourhood."""
    start = time.perf_counter()
    plan = make_plan(hf, sources, targets, lambda parameter: BFLOAT16)
    spent = time.perf_counter() - start
    seconds = wire_seconds(plan, sources, targets, links)
    return PlannedRefit(spent, plan.wire_bytes(), plan.lower_bound, len(plan.rounds), seconds)


def _at(card: int) -> tuple[str, str]:
    return f"card {card}", f"node {card // CARDS_PER_NODE}"
