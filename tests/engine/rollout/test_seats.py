"""Who has which nodes and cards: every card has one owner, nodes are whole, and what does not divide is told."""

from dataclasses import dataclass
from itertools import chain

import pytest

from cascade_rl.engine.backend import cards
from cascade_rl.engine.cluster.node import ThisNode
from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.settings import RolloutConfig
from cascade_rl.engine.rollout.seats import Division, card_seats, divide, seats
from cascade_rl.engine.rollout.server_process import _own_devices
from cascade_rl.engine.rollout.vllm_worker import vllm_cpu_patches


def apart(engines: int, tensor: int = 1) -> RolloutConfig:
    return RolloutConfig(engines=engines, tensor=tensor, placement="disaggregated")


@pytest.mark.parametrize(
    ("nproc", "rollout", "expected"),
    [
        (8, None, Division(1, 8)),
        (16, RolloutConfig(engines=4), Division(2, 8)),
        (10, RolloutConfig(engines=2), Division(2, 5)),
        (4, apart(4), Division(1, 4, 0, 4)),
        (2, apart(1, tensor=4), Division(1, 2, 0, 4)),  # two cards are idle
        (8, apart(1, tensor=8), Division(1, 8, 1, 8)),
        (16, apart(28, tensor=4), Division(2, 8, 14, 8)),
        (64, apart(8), Division(8, 8, 1, 8)),
    ],
)
def test_engines_of_their_own_are_beside_the_ranks_or_have_whole_nodes(
    nproc: int, rollout: RolloutConfig | None, expected: Division
) -> None:
    found = divide(nproc, rollout, cards=8)
    assert found == expected
    assert found.trainer_nodes * found.ranks == nproc
    if rollout and rollout.placement == "disaggregated":
        assert found.engine_cards * max(found.engine_nodes, 1) == rollout.engines * rollout.tensor


@pytest.mark.parametrize(
    ("nproc", "rollout", "told"),
    [
        (17, None, "nproc: expected ranks that divide over 3 nodes of 8, found 17. Choose a multiple of 8."),
        (16, RolloutConfig(), "rollout.engines: expected a multiple of 2, .*; found 1."),
        (4, apart(8), "nproc: expected whole nodes, a multiple of 8, since 4 ranks and 8 engines of 1 .*; found 4."),
        (8, apart(3, tensor=4), "rollout.engines: expected whole nodes, a multiple of 2, .*; found 3."),
        (8, apart(8, tensor=3), "rollout.tensor: expected a divisor of the 8 cards of a node, found 3."),
        (8, apart(1, tensor=16), "rollout.tensor: expected a divisor of the 8 cards of a node, found 16."),
    ],
)
def test_what_does_not_divide_is_told(nproc: int, rollout: RolloutConfig | None, told: str) -> None:
    with pytest.raises(UserError, match=told):
        divide(nproc, rollout, cards=8)


@dataclass(frozen=True)
class Named(ThisNode):
    name: str = ""


@pytest.mark.parametrize(
    ("rollout", "ranks", "expected"),
    [
        (RolloutConfig(engines=4, tensor=2), [4, 4], ["a 0-1", "a 2-3", "b 0-1", "b 2-3"]),
        (apart(2, tensor=2), [4], ["a 4-5", "a 6-7"]),
        (apart(4, tensor=2), [8, 0, 0], ["b 0-1", "b 2-3", "c 0-1", "c 2-3"]),
        (RolloutConfig(engines=2), [0], ["a 0-0", "a 1-1"]),  # an engine without a job
    ],
)
def test_where_each_engine_is(rollout: RolloutConfig, ranks: list[int], expected: list[str]) -> None:
    nodes = [Named(count, name) for count, name in zip(ranks, "abc", strict=False)]
    assert [f"{seat.node.name} {seat.cards[0]}-{seat.cards[-1]}" for seat in seats(rollout, nodes)] == expected


def test_engines_that_do_not_spread_evenly_are_refused() -> None:
    with pytest.raises(UserError, match=r"rollout.engines: expected a multiple of 2, .* found 3"):
        seats(apart(3), [Named(8), Named(), Named()])


def test_a_process_a_card() -> None:
    shared, own = Named(2, "a"), Named(0, "b")
    assert [seat.cards for seat in card_seats(RolloutConfig(), [shared])] == [range(1), range(1, 2)]
    assert [(seat.node, seat.cards[0]) for seat in card_seats(apart(1, tensor=2), [shared, own])] == [
        (own, 0),
        (own, 1),
    ]


def see(monkeypatch: pytest.MonkeyPatch, visible: str | None, count: int) -> None:
    """A machine with so many cards, or with those that the environment leaves visible."""
    monkeypatch.setattr(vllm_cpu_patches, "installed", lambda: False)
    monkeypatch.setattr(cards, "count", lambda: count)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)


@pytest.mark.parametrize("visible", [None, "7,6,5,4,3,2,1,0", "GPU-a,GPU-b,GPU-c,GPU-d,GPU-e,GPU-f,GPU-g,GPU-h"])
def test_no_card_of_a_node_has_two_owners(monkeypatch: pytest.MonkeyPatch, visible: str | None) -> None:
    """A rank takes the card of its LOCAL_RANK, and its children the cards that they are given."""
    see(monkeypatch, visible, 8)
    seen = visible.split(",") if visible else list("01234567")
    ranks = seen[:4]
    taken = [_own_devices(seat.cards)["CUDA_VISIBLE_DEVICES"].split(",") for seat in seats(apart(2, 2), [Named(4)])]
    assert [*ranks, *chain(*taken)] == seen


@pytest.mark.parametrize("visible", [None, "a,b,c"])
def test_a_card_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch, visible: str | None) -> None:
    see(monkeypatch, visible, 3)
    told = f"CUDA devices 2 to 3 of its node: expected at least 4, found 3 .*={visible or 'not set'}.*change nproc"
    with pytest.raises(UserError, match=told):
        _own_devices(range(2, 4))
