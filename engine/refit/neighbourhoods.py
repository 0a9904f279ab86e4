"""Which trainer ranks refit which workers: neighbourhoods that are planned and connected without each other.

In a large job the ranks hold the model many times. A worker could take its weights from any copy. The copies on its
own node are the fastest, so a plan of all ranks would add nothing but a connection of each rank to each. A
neighbourhood is the smallest set of nodes whose trainer ranks hold the whole model, with the workers on these nodes.
Engines on nodes without a trainer rank are dealt out, whole, to the neighbourhoods in order. If they are fewer,
neighbourhoods are joined until each has one, so that all copies share the sending.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from cascade_rl.engine.models.name_map import Place
from cascade_rl.engine.refit.plan import Member
from cascade_rl.engine.refit.vllm_map import WorkerPlace


@dataclass(frozen=True)
class Neighbourhood:
    """Numbers of trainer ranks and of workers, which count from 0 each, in order."""

    trainers: tuple[int, ...]
    workers: tuple[int, ...]


def neighbourhoods(trainers: Sequence[Member[Place]], workers: Sequence[Member[WorkerPlace]]) -> list[Neighbourhood]:
    """Each trainer rank and each worker is in one of them. A neighbourhood may have no workers."""
    groups = _node_groups(trainers)
    far = list(dict.fromkeys(_engine(i, worker) for i, worker in enumerate(workers) if worker.node not in groups))
    count = len(set(groups.values()))
    joined = min(count, len(far)) or count
    of_node = {node: number * joined // count for node, number in groups.items()}
    of_far = {engine: number * joined // len(far) for number, engine in enumerate(far)}
    homes = [of_node.get(worker.node, of_far.get(_engine(i, worker), 0)) for i, worker in enumerate(workers)]
    return [
        Neighbourhood(
            tuple(rank for rank, trainer in enumerate(trainers) if of_node[trainer.node] == number),
            tuple(worker for worker, home in enumerate(homes) if home == number),
        )
        for number in range(joined)
    ]


def _engine(number: int, worker: Member[WorkerPlace]) -> int:
    return number // worker.place.tensor.size


def _node_groups(trainers: Sequence[Member[Place]]) -> dict[str, int]:
    """For each node of a trainer rank the number of its group: nodes that share a copy of the model are in one."""
    order = list(dict.fromkeys(trainer.node for trainer in trainers))
    copies: dict[int, set[str]] = defaultdict(set)
    for trainer in trainers:
        copies[_copy(trainer.place)].add(trainer.node)
    groups = list[set[str]]()
    for nodes in copies.values():
        groups, touched = [g for g in groups if not g & nodes], [g for g in groups if g & nodes]
        groups.append(nodes.union(*touched))
    groups.sort(key=lambda group: min(map(order.index, group)))
    return {node: number for number, group in enumerate(groups) for node in group}


def _copy(place: Place) -> int:
    """Which of the model's copies the rank is part of: the smallest number of ranks that hold all of a stage."""
    inside = place.data.rank * place.tensor.size + place.tensor.rank  # its stage, in Megatron's order
    return inside // math.lcm(place.tensor.size, place.expert.size * place.expert_tensor.size)
