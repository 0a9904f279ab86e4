"""How a refit's bytes pass between two processes."""

from inspect import signature

import torch
from torch.multiprocessing.reductions import rebuild_cuda_tensor

from cascade_rl.engine.backend import wire

CPU = torch.device("cpu")


def test_what_one_side_writes_into_a_row_the_other_reads() -> None:
    ours, by = wire.shared(CPU, 2, 16)
    theirs = wire.mapped(CPU, by, 2, 16)
    ours[1].fill_(7)
    assert [row.tolist() for row in theirs] == [[0] * 16, [7] * 16]


def test_a_card_has_the_receivers_number() -> None:
    """The sender may see eight cards and the receiver four of them (vLLM's ipc_engine.py does the same)."""
    names = list(signature(rebuild_cuda_tensor).parameters)
    assert names[wire.STORAGE_DEVICE] == "storage_device"
    arguments = [*range(6), "the sender's number", *range(7, len(names))]
    assert wire.on_card(torch.device("cuda", 3), arguments) == [*range(6), 3, *range(7, len(names))]


def test_without_a_card_the_memory_of_a_host_is_one() -> None:
    card, node = wire.whereabouts(CPU)
    assert card == node
