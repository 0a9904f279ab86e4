from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.rollouts import Kept
from cascade_rl.engine.core.train_sequence import TrainSequence
from cascade_rl.engine.train.packing import MicroBatch, pack, unpack
from cascade_rl.kernels.linear_logprob import IGNORED
from cascade_rl.moe.router_replay import NOT_CAPTURED

LAYERS, TOPK = 2, 3


def sequence(length: int, seed: int, *, routes: bool = True) -> TrainSequence:
    """`length` positions, every array of it random."""
    random = np.random.default_rng(seed)
    counts = random.integers(0, 4, length, dtype=np.int32)
    kept = Kept(random.integers(0, 1000, counts.sum(), dtype=np.int32), counts) if seed % 3 else None
    return TrainSequence(
        token_ids=random.integers(1, 1000, length + 1),
        loss_mask=random.random(length) < 0.5,
        temperature=float(random.uniform(0.5, 1.5)),
        per_token={"advantage": random.normal(size=length).astype(np.float32)},
        routes=random.integers(0, 8, (length, LAYERS, TOPK)).astype(np.int16) if routes else None,
        kept=kept,
    )


def sequences(lengths: list[int]) -> list[TrainSequence]:
    return [sequence(length, seed) for seed, length in enumerate(lengths)]


def segments(micro_batch: MicroBatch) -> list[slice]:
    bounds = micro_batch.cu_seqlens.tolist()
    return [slice(*pair) for pair in pairwise(bounds)]


@st.composite
def plans(draw) -> tuple[list[int], list[list[int]]]:
    """Lengths, and a partition of their indices in any order; a micro-batch may be empty."""
    lengths = draw(st.lists(st.integers(1, 24), min_size=1, max_size=20))
    order = draw(st.permutations(range(len(lengths))))
    cuts = sorted(draw(st.lists(st.integers(0, len(lengths)), max_size=4)))
    return lengths, [order[start:end] for start, end in pairwise([0, *cuts, len(lengths)])]


LONGEST = 24 * 20
padding = st.sampled_from([(1, None), (1, LONGEST), (4, None), (4, LONGEST), (16, None), (16, 32 * 20)])


@settings(deadline=None, max_examples=60)
@given(plans(), padding)
def test_round_trip_of_everything_that_belongs_to_a_token(
    case: tuple[list[int], list[list[int]]], padding: tuple[int, int | None]
):
    lengths, plan = case
    packed_from = sequences(lengths)
    micro_batches = pack(packed_from, plan, segment_multiple=padding[0], padded_to=padding[1])
    assert [list(micro_batch.index) for micro_batch in micro_batches] == plan

    def back(field) -> dict[int, np.ndarray]:
        return unpack([field(micro_batch) for micro_batch in micro_batches], micro_batches)

    found = {
        "input_ids": back(lambda m: m.input_ids[0]),
        "position_ids": back(lambda m: m.position_ids[0]),
        "targets": back(lambda m: m.targets),
        "loss_mask": back(lambda m: m.loss_mask),
        "temperature": back(lambda m: m.temperature),
        "advantage": back(lambda m: m.per_token["advantage"]),
        "route": back(lambda m: m.routes[:, 1, 2]),
    }
    for name, values in found.items():
        assert sorted(values) == list(range(len(lengths))), name
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
@given(plans(), padding)
def test_padding_is_inert_and_its_segments_are_whole(
    case: tuple[list[int], list[list[int]]], padding: tuple[int, int | None]
):
    lengths, plan = case
    multiple, padded_to = padding
    for micro_batch in pack(sequences(lengths), plan, segment_multiple=multiple, padded_to=padded_to):
        tokens = len(micro_batch.targets)
        padded = [lengths[i] + -lengths[i] % multiple for i in micro_batch.index]
        assert tokens == (padded_to or sum(padded) or multiple)
        tail = [tokens - sum(padded)] if tokens > sum(padded) else []
        assert [s.stop - s.start for s in segments(micro_batch)] == padded + tail
        assert micro_batch.max_seqlen == max(padded + tail)

        real = np.zeros(tokens, bool)
        for i, segment in zip(micro_batch.index, segments(micro_batch), strict=False):
            real[segment.start : segment.start + lengths[i]] = True
        np.testing.assert_array_equal(micro_batch.targets != IGNORED, real)
        assert not micro_batch.loss_mask[~real].any()
        assert not micro_batch.input_ids[0, ~real].any()
        assert not micro_batch.per_token["advantage"][~real].any()
        assert (micro_batch.temperature[~real] == 1).all()
        assert (micro_batch.routes[~real] == NOT_CAPTURED).all()
        for segment in segments(micro_batch):
            assert micro_batch.position_ids[0, segment].tolist() == list(range(segment.stop - segment.start))


def test_dtypes_and_shapes():
    (micro_batch,) = pack(sequences([5, 2]), [[0, 1]], segment_multiple=4)
    assert micro_batch.input_ids.shape == micro_batch.position_ids.shape == (1, 12)
    assert micro_batch.routes.shape == (12, LAYERS, TOPK)
    assert micro_batch.cu_seqlens.tolist() == [0, 8, 12]
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
    for micro_batch in pack([sequence(5, 0, routes=False)], [[0], []]):
        assert micro_batch.routes is None


def test_a_micro_batch_without_sequences_is_one_segment_of_padding():
    (micro_batch,) = pack(sequences([5, 6]), [[]], segment_multiple=8)
    assert micro_batch.index == ()
    assert micro_batch.input_ids.tolist() == [[0] * 8]
    assert micro_batch.cu_seqlens.tolist() == [0, 8]
    assert (micro_batch.targets == IGNORED).all()
    assert not micro_batch.loss_mask.any()
    assert micro_batch.routes.tolist() == [[[NOT_CAPTURED] * TOPK] * LAYERS] * 8
    assert micro_batch.per_token["advantage"].tolist() == [0] * 8
    assert unpack([micro_batch.temperature], [micro_batch]) == {}


def test_a_length_that_cannot_be_padded_to():
    with pytest.raises(UserError, match="found 10: set it to 12"):
        pack(sequences([3]), [[0]], segment_multiple=4, padded_to=10)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (TrainSequence(np.arange(4), np.ones(4, bool)), "sequence 1 has 4 tokens.*'loss_mask': 4"),
        (TrainSequence(np.arange(1), np.ones(0, bool)), "sequence 1 has 1 tokens: expected at least 2"),
        (
            TrainSequence(np.arange(4), np.ones(3, bool), per_token={"advantage": np.ones(2, np.float32)}),
            "'advantage': 2",
        ),
        (TrainSequence(np.arange(4), np.ones(3, bool), routes=np.zeros((4, 1, 1), np.int16)), "'routes': 4"),
        (TrainSequence(np.arange(4), np.ones(3, bool)), "sequence 1 holds"),
        (sequence(3, 1, routes=False), "sequence 1 holds"),
    ],
)
def test_arrays_that_do_not_fit(wrong: TrainSequence, message: str):
    with pytest.raises(ValueError, match=message):
        pack([sequence(3, 0), wrong], [[0, 1]])


def test_unpack_refuses_what_does_not_fit():
    micro_batches = pack(sequences([5, 6]), [[1], [0]])
    values = [m.temperature for m in micro_batches]
    with pytest.raises(ValueError, match=r"expected \[6\] values, found \[5\]"):
        unpack(values[::-1], micro_batches)
    with pytest.raises(ValueError, match="longer"):
        unpack(values[:1], micro_batches)


def test_kept_ids_stay_at_their_positions():
    """Of three sequences, the first kept the whole vocabulary everywhere; so does a batch of it alone."""
    packed_from = sequences([5, 7, 3])
    (micro_batch, alone) = pack(packed_from, [[2, 0, 1], [0]], segment_multiple=4)
    assert (alone.kept, packed_from[0].kept) == (None, None)
    counts = (micro_batch.kept != IGNORED).sum(1)
    assert micro_batch.kept.shape == (20, counts.max())
    for i, segment in zip(micro_batch.index, segments(micro_batch), strict=True):
        kept, rows = packed_from[i].kept, micro_batch.kept[segment]
        assert counts[segment].tolist() == [*(kept.counts.tolist() if kept else []), *[0] * 99][: len(rows)]
        assert rows[rows != IGNORED].tolist() == (kept.ids.tolist() if kept else [])
    spoilt = replace(packed_from[1], kept=Kept(packed_from[1].kept.ids, packed_from[1].kept.counts[1:]))
    with pytest.raises(ValueError, match=r"expected at least 2, and 7 entries in each array, found {'kept': 6}"):
        pack([spoilt], [[0]])
