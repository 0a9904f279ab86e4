"""Who has which cards of a job's nodes: ranks the first ones, engines the same or those behind. Torch-free.

Engines of their own (`placement="disaggregated"`) are beside the ranks where one node holds both. Otherwise ranks and
engines have whole nodes, those of the ranks first, so that neither side ever waits for the other's part of a node.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from cascade_rl.engine.cluster.node import Node
from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.settings import RolloutConfig


@dataclass(frozen=True)
class Division:
    """The nodes of a stage's job.

    trainer_nodes  nodes with ranks, which come first
    ranks          of each of them
    engine_nodes   nodes with engines alone
    engine_cards   of each node that has engines, the cards that no rank shares
    """

    trainer_nodes: int
    ranks: int
    engine_nodes: int = 0
    engine_cards: int = 0

    @property
    def nodes(self) -> int:
        return self.trainer_nodes + self.engine_nodes


def divide(nproc: int, rollout: RolloutConfig | None, cards: int) -> Division:
    """The nodes of `cards` cards each for `nproc` ranks and their engines, or for ranks alone.

    Raises UserError for numbers that do not divide; it names the key.
    """
    if rollout is None or rollout.placement == "colocated":
        return _shared(nproc, rollout, cards)
    own = rollout.engines * rollout.tensor
    return Division(1, nproc, engine_cards=own) if nproc + own <= cards else _apart(nproc, rollout, cards)


def _shared(nproc: int, rollout: RolloutConfig | None, cards: int) -> Division:
    nodes = ceil(nproc / cards)
    if nproc % nodes:
        raise UserError(
            f"nproc: expected ranks that divide over {nodes} nodes of {cards}, found {nproc}. Choose a multiple of "
            f"{cards}."
        )
    if rollout:
        engines_per_node(rollout.engines, nodes)
    return Division(nodes, nproc // nodes)


def _apart(nproc: int, rollout: RolloutConfig, cards: int) -> Division:
    why = f"since {nproc} ranks and {rollout.engines} engines of {rollout.tensor} do not fit on one node of {cards}"
    if nproc % cards:
        raise UserError(f"nproc: expected whole nodes, a multiple of {cards}, {why}; found {nproc}.")
    if cards % rollout.tensor:
        raise UserError(f"rollout.tensor: expected a divisor of the {cards} cards of a node, found {rollout.tensor}.")
    if rollout.engines % (each := cards // rollout.tensor):
        raise UserError(f"rollout.engines: expected whole nodes, a multiple of {each}, {why}; found {rollout.engines}.")
    return Division(nproc // cards, cards, rollout.engines // each, cards)


class Seat(NamedTuple):
    """Where an engine runs. `cards` are numbers among the CUDA devices that the first process of the node sees."""

    node: Node
    cards: range


def seats(rollout: RolloutConfig, nodes: Sequence[Node]) -> list[Seat]:
    """That of each engine, in their order. Raises UserError if they cannot be spread evenly."""
    homes = engine_nodes(nodes)
    each = engines_per_node(rollout.engines, len(homes))
    places = [(node, first_card(rollout, node) + i * rollout.tensor) for node in homes for i in range(each)]
    return [Seat(node, range(first, first + rollout.tensor)) for node, first in places]


def card_seats(rollout: RolloutConfig, nodes: Sequence[Node]) -> list[Seat]:
    """One on each card of engines of their own, or else of the ranks."""
    if rollout.placement == "disaggregated":
        own = seats(rollout, nodes)
    else:
        own = [Seat(node, range(node.ranks)) for node in nodes]
    return [Seat(node, range(card, card + 1)) for node, cards in own for card in cards]


def engine_nodes(nodes: Sequence[Node]) -> Sequence[Node]:
    """Those on which engines run: the ones without ranks, if there are any."""
    return [node for node in nodes if not node.ranks] or nodes


def first_card(rollout: RolloutConfig, node: Node) -> int:
    """The first of the engines' cards on a node."""
    return node.ranks if rollout.placement == "disaggregated" else 0


def engines_per_node(engines: int, nodes: int) -> int:
    """Raises UserError if the engines cannot be spread evenly."""
    if engines % nodes:
        raise UserError(
            f"rollout.engines: expected a multiple of {nodes}, since the {nodes} nodes that have engines run equally "
            f"many; found {engines}."
        )
    return engines // nodes
