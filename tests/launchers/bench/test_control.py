"""512 trainer ranks and 512 workers meet and refit at a store that counts."""

import pytest

from cascade_rl.launchers.bench.control import Meeting
from tests.engine.refit.refit_layouts import NEMOTRON

RANKS = 512
SMALL = NEMOTRON | {"n_routed_experts": 16, "num_attention_heads": 16, "num_key_value_heads": 4}


@pytest.fixture(scope="module")
def meeting() -> Meeting:
    meeting = Meeting(SMALL, RANKS, spread_s=0.0)
    meeting.run()
    return meeting


def test_operations_grow_with_the_members_and_not_with_their_pairs(meeting: Meeting) -> None:
    most, of_all = meeting.store.most_and_all()
    members = 2 * RANKS
    assert of_all <= 8 * members
    assert most <= 2 * members + 8  # rank 0, which reads and answers each entry


def test_a_member_that_is_not_rank_0_asks_the_store_a_few_times(meeting: Meeting) -> None:
    operations = sorted(meeting.store.operations.values())
    assert len(operations) == 2 * RANKS
    assert operations[-2] <= 8


def test_a_rank_plans_with_its_neighbours(meeting: Meeting) -> None:
    _, trainers, workers, *_ = meeting.planned
    assert (len(trainers), len(workers)) == (16, 16)  # a copy of the model, on two nodes
