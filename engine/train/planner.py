"""Assigns sequences to micro-batches, and these to data-parallel ranks in order. Works without torch.

First it makes as few micro-batches as the token budget allows, because each is a pass of its own. Then it balances
their cost, because ranks, which share experts, wait for each other in every pass, and pipeline stages wait for the
slowest pass. Every rank computes the same plan from the same lengths; nothing is exchanged.
"""

from collections.abc import Iterable, Sequence
from itertools import batched
from typing import NamedTuple

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.models.flops import SequenceCost

Plan = list[list[list[int]]]
"""Indices of sequences: [rank][slot] is one micro-batch. All ranks have equally many; some may be empty."""

ROUNDS = 100


class _Item(NamedTuple):
    size: int  # in units of the segment multiple
    cost: float
    sequence: int


def plan_micro_batches(
    lengths: Sequence[int],
    token_budget: int,
    cost: SequenceCost,
    *,
    ranks: int = 1,
    segment_multiple: int = 1,
    slot_multiple: int = 1,
) -> Plan:
    """The plan of a global batch whose sequences have `lengths` positions, each padded to `segment_multiple`.

    The number of slots is a multiple of `slot_multiple`. Raises UserError for a sequence longer than the budget.
    """
    sizes = [-(-length // segment_multiple) for length in lengths]
    costs = cost.of([size * segment_multiple for size in sizes])
    items = list(map(_Item, sizes, costs, range(len(sizes))))
    room = token_budget // segment_multiple
    for item in items:
        if item.size > room:
            raise UserError(_too_long(item.sequence, lengths[item.sequence], token_budget, segment_multiple))
    batches = _fewest(items, room)
    batches += [[] for _ in range(-len(batches) % (ranks * slot_multiple))]
    _balance(batches, room)
    return _deal(batches, ranks)


def packing_efficiency(plan: Plan, lengths: Sequence[int], token_budget: int) -> float:
    """Real tokens divided by the tokens that the micro-batches of the plan can hold."""
    return sum(lengths) / (token_budget * sum(map(len, plan)))


def _too_long(index: int, length: int, token_budget: int, multiple: int) -> str:
    padded = f" (padded to a multiple of {multiple})" if length % multiple else ""
    return (
        f"sequence {index} has {length} positions{padded}, more than token_budget = {token_budget}: "
        "raise token_budget or shorten the sequences"
    )


def _cost(batch: Iterable[_Item]) -> float:
    return sum(item.cost for item in batch)


def _fewest(items: list[_Item], room: int) -> list[list[_Item]]:
    """Each micro-batch takes the longest sequence that is left, and those that best fill the rest of it."""
    left = sorted(items, key=lambda item: (-item.size, item.sequence))
    batches = []
    while left:
        batch = [left[0], *_fill(left[1:], room - left[0].size)]
        taken = {item.sequence for item in batch}
        left = [item for item in left if item.sequence not in taken]
        batches.append(batch)
    return batches


def _fill(items: list[_Item], room: int) -> list[_Item]:
    """Subset sum: the items that fill `room` best; earlier ones if there is a choice.

    Bit s of reachable[k] says whether some of the first k items have the total size s.
    """
    reachable, mask = [1], (2 << room) - 1
    for item in items:
        if reachable[-1] >> room:
            break
        reachable.append((reachable[-1] | reachable[-1] << item.size) & mask)
    total, chosen = reachable[-1].bit_length() - 1, []
    for item, without in zip(reversed(items[: len(reachable) - 1]), reversed(reachable[:-1]), strict=True):
        if not without >> total & 1:
            chosen.append(item)
            total -= item.size
    return chosen


def _balance(batches: list[list[_Item]], room: int) -> None:
    """Balances heavy with light micro-batches in pairs, with different pairs in every round. In place."""
    half = len(batches) // 2
    unchanged = 0
    for shift in range(ROUNDS):
        batches.sort(key=_cost, reverse=True)
        before = batches.copy()
        for heavy in range(half):
            light = -1 - (heavy + shift) % half
            batches[heavy], batches[light] = _share_out(batches[heavy], batches[light], room)
        unchanged = unchanged + 1 if batches == before else 0
        if unchanged >= half:
            return


def _share_out(one: list[_Item], other: list[_Item], room: int) -> tuple[list[_Item], list[_Item]]:
    """Divides the same items, longest first, each to the lighter side with room; unchanged if that is no better."""
    sides: tuple[list[_Item], list[_Item]] = ([], [])
    free, costs = [room, room], [0.0, 0.0]
    for item in sorted(one + other, key=lambda item: (-item.size, item.sequence)):
        side = int(costs[1] < costs[0])
        if item.size > free[side]:
            side = 1 - side
        if item.size > free[side]:
            return one, other
        sides[side].append(item)
        free[side] -= item.size
        costs[side] += item.cost
    return sides if max(costs) < max(_cost(one), _cost(other)) else (one, other)


def _deal(batches: list[list[_Item]], ranks: int) -> Plan:
    """Micro-batches of like cost share a slot; in each slot the heaviest goes to the rank with the least so far.

    The light slots are at both ends, where a pipeline fills and drains (verl orders its sequences in the same way).
    """
    batches.sort(key=_cost, reverse=True)
    totals, slots = [0.0] * ranks, []
    for slot in batched(batches, ranks):
        dealt = dict(zip(sorted(range(ranks), key=totals.__getitem__), slot, strict=True))
        totals = [total + _cost(dealt[rank]) for rank, total in enumerate(totals)]
        slots.append(dealt)
    rising = slots[::-1]
    ordered = rising[::2] + rising[1::2][::-1]
    return [[[item.sequence for item in slot[rank]] for slot in ordered] for rank in range(ranks)]
