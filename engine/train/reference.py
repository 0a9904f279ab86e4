"""Kept copies of a trainer's weights: the policy's first ones for a KL term, the student's while teachers run, and
those of teachers."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from cascade_rl.engine.backend.machine import backend
from cascade_rl.engine.train.trainer import Trainer


class Reference:
    """A copy of this rank's weights and buffers as they are when it is made, on their device or `on_host`."""

    def __init__(self, trainer: Trainer, *, on_host: bool = False) -> None:
        self.trainer = trainer
        keep = _on_host if on_host else torch.clone
        self.tensors = [keep(tensor.detach()) for tensor in live_tensors(trainer)]

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """In the block, the trainer computes with the kept weights."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        """Exchanges values; storages stay, because the optimizer and DDP hold views of them."""
        with torch.no_grad():
            for live, kept in zip(live_tensors(self.trainer), self.tensors, strict=True):
                current = live.detach().clone()
                live.copy_(kept)
                kept.copy_(current)


class HostCopy:
    """This rank's weights and buffers as they are when it is made, in host memory."""

    def __init__(self, trainer: Trainer) -> None:
        self.tensors = [tensor.detach().cpu().clone() for tensor in live_tensors(trainer)]

    @torch.no_grad()
    def restore(self, trainer: Trainer) -> None:
        """Gives the trainer the kept values, to the bit; storages stay."""
        for live, kept in zip(live_tensors(trainer), self.tensors, strict=True):
            live.copy_(kept)


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    return backend().at_rest(tensor.cpu().clone())


def live_tensors(trainer: Trainer) -> list[torch.Tensor]:
    """This rank's weights and buffers."""
    return [*trainer.module.parameters(), *trainer.module.buffers()]
