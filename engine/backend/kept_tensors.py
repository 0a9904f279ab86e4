"""Copies of tensors that can change places with them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from cascade_rl.engine.backend.machine import backend


class KeptTensors:
    """Copies of `live` as they are now, on their device or `on_host`."""

    def __init__(self, live: Sequence[Tensor], *, on_host: bool = False) -> None:
        self.live = live
        keep = _on_host if on_host else torch.clone
        self.tensors = [keep(tensor.detach()) for tensor in live]

    @torch.no_grad()
    def renew(self) -> None:
        """The copies become what the live tensors are now."""
        for live, kept in zip(self.live, self.tensors, strict=True):
            kept.copy_(live)

    @torch.no_grad()
    def put_back(self) -> None:
        """The live tensors become what the copies are."""
        for live, kept in zip(self.live, self.tensors, strict=True):
            live.copy_(kept)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """In the block, the live tensors have the kept values."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        """Exchanges values; storages stay, because the optimizer and DDP hold views of them."""
        for live, kept in zip(self.live, self.tensors, strict=True):
            current = live.detach().clone()
            live.copy_(kept)
            kept.copy_(current)


def _on_host(tensor: Tensor) -> Tensor:
    return backend().at_rest(tensor.cpu().clone())
