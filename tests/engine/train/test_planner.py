from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.models.flops import SequenceCost
from cascade_rl.engine.train.planner import Plan, packing_efficiency, plan_micro_batches

QUADRATIC = SequenceCost(per_token=1.0, per_pair=0.1)

lengths_in_budget = st.lists(st.integers(1, 64), min_size=1, max_size=40)


def plan(lengths: list[int], budget: int, **options: int) -> Plan:
    return plan_micro_batches(lengths, budget, QUADRATIC, **options)


@settings(deadline=None, max_examples=100)
@given(lengths_in_budget, st.integers(64, 200), st.integers(1, 5), st.sampled_from([1, 4, 8]), st.integers(1, 3))
def test_every_sequence_once_within_the_budget_in_equal_counts(
    lengths: list[int], budget: int, ranks: int, multiple: int, slot_multiple: int
):
    options = {"ranks": ranks, "segment_multiple": multiple, "slot_multiple": slot_multiple}
    found = plan(lengths, budget, **options)
    batches = list(chain.from_iterable(found))
    assert sorted(chain.from_iterable(batches)) == list(range(len(lengths)))
    for batch in batches:
        assert sum(lengths[i] + -lengths[i] % multiple for i in batch) <= budget
    assert len(found) == ranks
    (count,) = {len(own) for own in found}
    assert count % slot_multiple == 0
    assert plan(lengths, budget, **options) == found
    assert packing_efficiency(found, lengths, budget) == sum(lengths) / (budget * len(batches))


@settings(deadline=None, max_examples=100)
@given(lengths_in_budget, st.integers(64, 200))
def test_no_two_micro_batches_would_fit_into_one(lengths: list[int], budget: int):
    tokens = sorted(sum(lengths[i] for i in batch) for batch in plan(lengths, budget)[0])
    assert len(tokens) == 1 or tokens[0] + tokens[1] > budget


def test_fills_micro_batches_that_first_fit_decreasing_leaves_open():
    """First-fit-decreasing needs three: 5 + 4, 3 + 3 + 3 and 2."""
    assert len(plan([5, 4, 3, 3, 3, 2], 10)[0]) == 2


def test_equal_cost_before_equal_tokens():
    """8 tokens cost 14.4 and four times 3 cost 15.6; 8 + 3 and 9 tokens would cost 18.3 and 11.7."""
    (first,), (second,) = plan([8, 3, 3, 3, 3], 16, ranks=2)
    assert sorted([sorted(first), sorted(second)]) == [[0], [1, 2, 3, 4]]


def test_slots_hold_like_cost_and_ranks_are_even():
    """Four heavy and four light micro-batches that cannot be mixed, on two ranks."""
    (first, second) = plan([10] * 4 + [1] * 40, 10, ranks=2)
    heavy = [[len(batch) == 1 for batch in own] for own in (first, second)]
    assert heavy[0] == heavy[1] == [False, True, True, False]  # light ones where a pipeline fills and drains


def test_a_rank_without_sequences_has_an_empty_micro_batch():
    assert sorted(plan([5], 8, ranks=3)) == [[[]], [[]], [[0]]]


def test_a_batch_that_needs_no_second_micro_batch_is_spread_over_the_ranks():
    assert sorted(len(own[0]) for own in plan([4] * 8, 64, ranks=4)) == [2, 2, 2, 2]


@pytest.mark.parametrize(
    ("lengths", "multiple", "message"),
    [
        ([3, 9], 1, "sequence 1 has 9 positions, more than token_budget = 8"),
        ([3, 7], 5, r"sequence 1 has 7 positions \(padded to a multiple of 5\), more than token_budget = 8"),
    ],
)
def test_a_sequence_longer_than_the_budget_names_the_knob(lengths: list[int], multiple: int, message: str):
    with pytest.raises(UserError, match=message):
        plan(lengths, 8, segment_multiple=multiple)
