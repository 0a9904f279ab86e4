"""The rules of torch's ProcessGroupNCCL, kept over gloo, so that the refit's traffic can be judged without a card.

As in ProcessGroupNCCL.cpp: a transfer that is not part of a batch runs on a communicator of its two ranks. The first
one makes it, and both ranks wait there for each other. NCCL refuses a communicator with two ranks of one card. A batch
would run on the communicator of all ranks; the refit has none, so this class has none either.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import ProcessGroupGloo, Store

MEETING_TAG = 2


class StrictNccl:
    """`cards` are the names of the ranks' cards."""

    def __init__(self, cards: Sequence[str], store: Store, rank: int, size: int, timeout: timedelta) -> None:
        self._cards, self._rank = cards, rank
        self._gloo: Any = ProcessGroupGloo(store, rank, size, timeout)
        self._communicators = set[int]()

    def send(self, tensors: list[torch.Tensor], peer: int, tag: int) -> Any:
        self._require_communicator(peer)
        return self._gloo.send(tensors, peer, tag)

    def recv(self, tensors: list[torch.Tensor], peer: int, tag: int) -> Any:
        self._require_communicator(peer)
        return self._gloo.recv(tensors, peer, tag)

    def _require_communicator(self, peer: int) -> None:
        if self._cards[self._rank] == self._cards[peer]:
            raise RuntimeError(f"Duplicate GPU detected: rank {self._rank} and rank {peer} on {self._cards[peer]}")
        if peer not in self._communicators:
            word = torch.zeros(1)
            for sender in sorted((self._rank, peer)):
                transfer = self._gloo.send if sender == self._rank else self._gloo.recv
                transfer([word], peer, MEETING_TAG).wait()
            self._communicators.add(peer)
