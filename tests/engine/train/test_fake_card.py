"""Fake tensors with known numbers: shapes that depend on numbers, devices, and bytes."""

import pytest
import torch

from cascade_rl.engine.train.fake_card import CARD, FakeCard
from tests.engine.train.on_fake_card import on_fake_card

HIDDEN = 64


@on_fake_card
def test_lengths_on_the_card_decide_shapes_and_loops(card: FakeCard) -> None:
    borders = torch.tensor([0, 3, 8], device=CARD)
    lengths = borders.diff()
    assert lengths.tolist() == [3, 5]
    assert torch.arange(2, device=CARD).repeat_interleave(lengths).shape == (8,)
    rows = torch.empty(8, HIDDEN, device=CARD)
    late = torch.arange(8, device=CARD) >= 6
    assert rows[late].shape == (2, HIDDEN)


@on_fake_card
def test_a_router_chooses_evenly_and_the_counts_are_known(card: FakeCard) -> None:
    scores = torch.empty(12, 8, device=CARD)
    chosen = torch.zeros_like(scores).scatter(1, scores.topk(2).indices, 1).bool()
    assert chosen.sum(0).tolist() == [3] * 8
    assert chosen.sum(0).numpy().tolist() == [3] * 8


@on_fake_card
def test_what_unknown_numbers_overwrite_is_unknown_and_so_are_its_views(card: FakeCard) -> None:
    counts = torch.zeros(4, device=CARD)
    view = counts[:2]
    assert counts.sum().item() == 0
    view.copy_(torch.empty(2, device=CARD))
    assert counts.sum().item() == 1  # the rule for what is unknown


@on_fake_card
def test_a_shape_by_unknown_numbers_is_refused(card: FakeCard) -> None:
    with pytest.raises(RuntimeError, match="mask of known numbers"):
        torch.empty(4, device=CARD)[torch.empty(4, device=CARD) > 0]


@on_fake_card
def test_host_and_card_do_not_mix(card: FakeCard) -> None:
    with pytest.raises(RuntimeError, match="on the same device"):
        torch.empty(4, device=CARD) + torch.empty(4)


@on_fake_card
def test_bytes_are_those_of_storages_that_are_alive(card: FakeCard) -> None:
    rows = torch.empty(1000, HIDDEN, device=CARD)
    view, host = rows[:10], torch.empty(1000)
    assert card.memory.held == 4 * 1000 * HIDDEN
    del rows
    assert card.memory.held == 4 * 1000 * HIDDEN  # the view
    del view, host
    assert card.memory.held == 0
    one = torch.empty(1, device=CARD)
    assert card.memory.held == 512 >= one.nbytes


@on_fake_card
def test_a_storage_that_is_emptied_counts_no_more(card: FakeCard) -> None:
    """As Megatron does with outputs that it computes again."""
    rows = torch.empty(1000, HIDDEN, device=CARD)
    card.memory.resize(rows.untyped_storage(), 0)
    assert (card.memory.held, card.memory.peak) == (0, 4 * 1000 * HIDDEN)
    card.memory.resize(rows.untyped_storage(), 600)
    assert card.memory.held == 1024
    del rows
    assert card.memory.held == 0


@on_fake_card
def test_unknown_numbers_are_not_zero(card: FakeCard) -> None:
    """So that each row has a gradient, and the number of those that have is known."""
    gradient = torch.empty(6, 2, device=CARD)
    assert (gradient != 0).any(1).nonzero().shape == (6, 1)
