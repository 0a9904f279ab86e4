"""Neighbourhoods divide the job, and each alone refits its workers."""

from dataclasses import dataclass

import pytest

from cascade_rl.engine.core.settings import ParallelConfig
from cascade_rl.engine.models.name_map import Cut, Place
from cascade_rl.engine.models.places import place_of
from cascade_rl.engine.refit.neighbourhoods import Neighbourhood, neighbourhoods
from cascade_rl.engine.refit.plan import Member, make_plan
from cascade_rl.engine.refit.vllm_map import WorkerPlace
from tests.engine.refit.refit_layouts import NEMOTRON

EIGHT_EXPERTS = NEMOTRON | {"n_routed_experts": 8}


@dataclass(frozen=True)
class Job:
    """Trainer ranks on nodes of four cards from 0 on, TP2 engines on nodes of four cards from `first_node` on."""

    name: str
    parallel: ParallelConfig
    ranks: int
    engines: int
    first_node: int
    expected: list[tuple[list[int], list[int]]]

    def members(self) -> tuple[list[Member[Place]], list[Member[WorkerPlace]]]:
        trainers = [Member(place_of(i, self.ranks, self.parallel), f"c{i}", f"n{i // 4}") for i in range(self.ranks)]
        cards = range(4 * self.first_node, 4 * self.first_node + 2 * self.engines)
        return trainers, [Member(WorkerPlace(Cut(card % 2, 2)), f"c{card}", f"n{card // 4}") for card in cards]


def span(*bounds: tuple[int, int]) -> list[int]:
    return [number for first, last in bounds for number in range(first, last + 1)]


JOBS = [
    Job("one node", ParallelConfig(tensor=2), 4, 2, 0, [(span((0, 3)), span((0, 3)))]),
    Job(
        "a copy a node", ParallelConfig(expert=4), 8, 4, 0, [(span((0, 3)), [0, 1, 2, 3]), (span((4, 7)), [4, 5, 6, 7])]
    ),
    Job("a copy on two nodes", ParallelConfig(expert=8), 8, 4, 0, [(span((0, 7)), span((0, 7)))]),
    Job(
        "stages on two nodes",
        ParallelConfig(pipeline=2),
        16,
        8,
        0,
        [(span((0, 3), (8, 11)), span((0, 3), (8, 11))), (span((4, 7), (12, 15)), span((4, 7), (12, 15)))],
    ),
    Job("engines elsewhere", ParallelConfig(), 8, 4, 2, [(span((0, 3)), span((0, 3))), (span((4, 7)), span((4, 7)))]),
    Job("fewer engines than copies", ParallelConfig(), 12, 2, 3, [(span((0, 7)), [0, 1]), (span((8, 11)), [2, 3])]),
    Job("one engine", ParallelConfig(), 12, 1, 3, [(span((0, 11)), [0, 1])]),
    Job("nodes without an engine", ParallelConfig(), 8, 2, 0, [(span((0, 3)), span((0, 3))), (span((4, 7)), [])]),
    Job("here and elsewhere", ParallelConfig(), 8, 3, 1, [(span((0, 7)), span((0, 5)))]),
]


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_a_neighbourhood_is_the_smallest_that_holds_the_model(job: Job) -> None:
    found = neighbourhoods(*job.members())
    assert found == [Neighbourhood(tuple(trainers), tuple(workers)) for trainers, workers in job.expected]


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_each_worker_gets_all_its_numbers_from_its_neighbours(job: Job) -> None:
    """A plan raises RefitError for a number that no neighbour holds. The wire carries as much as by one plan."""
    trainers, workers = job.members()
    whole = make_plan(EIGHT_EXPERTS, trainers, workers, lambda _: 4)
    parts = [
        make_plan(EIGHT_EXPERTS, [trainers[i] for i in near.trainers], [workers[i] for i in near.workers], lambda _: 4)
        for near in neighbourhoods(trainers, workers)
    ]
    assert sum(part.wire_bytes() for part in parts) == whole.wire_bytes()
