from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cascade_rl.engine.errors import UserError
from cascade_rl.engine.packing import MicroBatch, pack, packing_efficiency, pad_count, unpack
from cascade_rl.engine.sample import Sequence
from cascade_rl.kernels.linear_logprob import IGNORED
from cascade_rl.moe.router_replay import NOT_CAPTURED

LAYERS, TOPK = 2, 3


def sequence(length: int, seed: int, *, routes: bool = True) -> Sequence:
    """`length` positions, every array of it random."""
    random = np.random.default_rng(seed)
    return Sequence(
        token_ids=random.integers(1, 1000, length + 1),
        loss_mask=random.random(length) < 0.5,
        temperature=float(random.uniform(0.5, 1.5)),
        per_token={"advantage": random.normal(size=length).astype(np.float32)},
        routes=random.integers(0, 8, (length, LAYERS, TOPK)).astype(np.int16) if routes else None,
    )


def sequences(lengths: list[int]) -> list[Sequence]:
    return [sequence(length, seed) for seed, length in enumerate(lengths)]


def segments(micro_batch: MicroBatch) -> list[slice]:
    bounds = micro_batch.cu_seqlens.tolist()
    return [slice(*pair) for pair in pairwise(bounds)]


lengths_and_budgets = st.tuples(
    st.lists(st.integers(1, 24), min_size=1, max_size=20), st.integers(3, 8), st.sampled_from([1, 2, 8])
)


@settings(deadline=None, max_examples=60)
@given(lengths_and_budgets)
def test_round_trip_of_everything_that_belongs_to_a_token(case: tuple[list[int], int, int]):
    lengths, budget_eighths, multiple_of = case
    packed_from = sequences(lengths)
    micro_batches = pack(packed_from, 8 * budget_eighths, multiple_of=multiple_of)
    for micro_batch in micro_batches:
        assert len(micro_batch.targets) <= 8 * budget_eighths
        assert len(micro_batch.targets) % multiple_of == 0

    def back(field) -> list[np.ndarray]:
        return unpack([field(micro_batch) for micro_batch in micro_batches], micro_batches, len(lengths))

    found = {
        "input_ids": back(lambda m: m.input_ids[0]),
        "position_ids": back(lambda m: m.position_ids[0]),
        "targets": back(lambda m: m.targets),
        "loss_mask": back(lambda m: m.loss_mask),
        "temperature": back(lambda m: m.temperature),
        "advantage": back(lambda m: m.per_token["advantage"]),
        "route": back(lambda m: m.routes[:, 1, 2]),
    }
    for i, original in enumerate(packed_from):
        expected = {
            "input_ids": original.token_ids[:-1],
            "position_ids": np.arange(lengths[i]),
            "targets": original.token_ids[1:],
            "loss_mask": original.loss_mask,
            "temperature": np.full(lengths[i], original.temperature, np.float32),
            "advantage": original.per_token["advantage"],
            "route": original.routes[:, 1, 2],
        }
        for name, values in expected.items():
            np.testing.assert_array_equal(found[name][i], values, err_msg=name)


@settings(deadline=None, max_examples=60)
@given(lengths_and_budgets)
def test_padding_is_one_inert_segment(case: tuple[list[int], int, int]):
    lengths, budget_eighths, multiple_of = case
    for micro_batch in pack(sequences(lengths), 8 * budget_eighths, multiple_of=multiple_of):
        tokens = len(micro_batch.targets)
        real = sum(lengths[i] for i in micro_batch.index)
        assert micro_batch.cu_seqlens[-1] == tokens
        assert len(segments(micro_batch)) == len(micro_batch.index) + (tokens > real)
        assert micro_batch.max_seqlen == max(s.stop - s.start for s in segments(micro_batch))
        assert (micro_batch.targets[:real] != IGNORED).all()
        assert (micro_batch.targets[real:] == IGNORED).all()
        assert not micro_batch.loss_mask[real:].any()
        assert not micro_batch.input_ids[0, real:].any()
        assert micro_batch.position_ids[0, real:].tolist() == list(range(tokens - real))
        assert (micro_batch.routes[real:] == NOT_CAPTURED).all()


def test_first_fit_decreasing():
    micro_batches = pack(sequences([2, 5, 4, 7, 1, 3, 8]), 10)
    assert [micro_batch.index for micro_batch in micro_batches] == [(6, 0), (3, 5), (1, 2, 4)]
    assert packing_efficiency(micro_batches, 10) == 1.0


def test_equal_lengths_keep_their_order():
    assert [m.index for m in pack(sequences([3, 3, 3, 3, 3]), 7)] == [(0, 1), (2, 3), (4,)]


@settings(deadline=None, max_examples=60)
@given(lengths_and_budgets)
def test_no_two_micro_batches_are_half_empty(case: tuple[list[int], int, int]):
    lengths, budget_eighths, _ = case
    budget = 8 * budget_eighths
    micro_batches = pack(sequences(lengths), budget)
    half_empty = [m for m in micro_batches if 2 * len(m.targets) <= budget]
    assert len(half_empty) <= 1
    assert packing_efficiency(micro_batches, budget) == sum(lengths) / (budget * len(micro_batches))


def test_dtypes_and_shapes():
    (micro_batch,) = pack(sequences([5, 2]), 16, multiple_of=8)
    assert micro_batch.input_ids.shape == micro_batch.position_ids.shape == (1, 8)
    assert micro_batch.routes.shape == (8, LAYERS, TOPK)
    assert micro_batch.cu_seqlens.tolist() == [0, 5, 7, 8]
    for tensor, dtype in (
        (micro_batch.input_ids, torch.int64),
        (micro_batch.position_ids, torch.int64),
        (micro_batch.targets, torch.int64),
        (micro_batch.loss_mask, torch.bool),
        (micro_batch.cu_seqlens, torch.int32),
        (micro_batch.temperature, torch.float32),
        (micro_batch.per_token["advantage"], torch.float32),
        (micro_batch.routes, torch.int64),
    ):
        assert tensor.dtype == dtype


def test_dense_models_have_no_routes():
    (micro_batch,) = pack([sequence(5, 0, routes=False)], 8)
    assert micro_batch.routes is None
    assert pad_count([micro_batch], 2, micro_batch)[1].routes is None


def test_pad_count_appends_passes_without_a_loss_token():
    micro_batches = pack(sequences([5, 6, 7]), 8, multiple_of=8)
    padded = pad_count(micro_batches, 5, micro_batches[0], multiple_of=8)
    assert padded[:3] == micro_batches
    for micro_batch in padded[3:]:
        assert micro_batch.index == ()
        assert micro_batch.input_ids.tolist() == [[0] * 8]
        assert micro_batch.cu_seqlens.tolist() == [0, 8]
        assert (micro_batch.targets == IGNORED).all()
        assert not micro_batch.loss_mask.any()
        assert micro_batch.routes.tolist() == [[[NOT_CAPTURED] * TOPK] * LAYERS] * 8
        assert micro_batch.per_token.keys() == {"advantage"}
    advantages = unpack([m.per_token["advantage"] for m in padded], padded, 3)
    for found, original in zip(advantages, sequences([5, 6, 7]), strict=True):
        np.testing.assert_array_equal(found, original.per_token["advantage"])


@pytest.mark.parametrize("count", [0, 2])
def test_pad_count_out_of_range(count: int):
    micro_batches = pack(sequences([5, 6, 7]), 8)
    with pytest.raises(ValueError, match=f"at most {count} micro-batches, found 3"):
        pad_count(micro_batches, count, micro_batches[0])


def test_pad_count_serves_a_rank_without_sequences():
    (like,) = pack(sequences([5]), 8)
    assert [m.index for m in pad_count([], 2, like)] == [(), ()]


def test_a_sequence_longer_than_the_budget_names_the_knob():
    with pytest.raises(UserError, match="sequence 1 has 9 positions, more than token_budget = 8"):
        pack(sequences([3, 9]), 8)


def test_a_budget_that_cannot_be_padded_to():
    with pytest.raises(UserError, match="set it to 12"):
        pack(sequences([3]), 10, multiple_of=4)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Sequence(np.arange(4), np.ones(4, bool)), "sequence 1 has 4 tokens.*'loss_mask': 4"),
        (Sequence(np.arange(1), np.ones(0, bool)), "sequence 1 has 1 tokens: expected at least 2"),
        (
            Sequence(np.arange(4), np.ones(3, bool), per_token={"advantage": np.ones(2, np.float32)}),
            "'advantage': 2",
        ),
        (Sequence(np.arange(4), np.ones(3, bool), routes=np.zeros((4, 1, 1), np.int16)), "'routes': 4"),
        (Sequence(np.arange(4), np.ones(3, bool)), "sequence 1 holds"),
        (sequence(3, 1, routes=False), "sequence 1 holds"),
    ],
)
def test_arrays_that_do_not_fit(wrong: Sequence, message: str):
    with pytest.raises(ValueError, match=message):
        pack([sequence(3, 0), wrong], 16)


def test_unpack_refuses_what_does_not_fit():
    micro_batches = pack(sequences([5, 6]), 8)
    values = [m.temperature for m in micro_batches]
    with pytest.raises(ValueError, match="3 sequences, found 2"):
        unpack(values, micro_batches, 3)
    with pytest.raises(ValueError, match=r"expected \[6\] values, found \[5\]"):
        unpack(values[::-1], micro_batches, 2)
    with pytest.raises(ValueError, match="longer"):
        unpack(values[:1], micro_batches, 2)
