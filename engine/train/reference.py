"""A kept copy of a trainer's weights: the policy's first ones for a KL term, or the student's while teachers run."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from cascade_rl.engine.train.trainer import Trainer


class Reference:
    """A copy of this rank's weights and buffers as they are when it is made."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.tensors = [tensor.detach().clone() for tensor in self._live()]

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """In the block, the trainer computes with the kept weights."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _live(self) -> list[torch.Tensor]:
        return [*self.trainer.module.parameters(), *self.trainer.module.buffers()]

    def _swap(self) -> None:
        """Exchanges values; storages stay, because the optimizer and DDP hold views of them."""
        with torch.no_grad():
            for live, kept in zip(self._live(), self.tensors, strict=True):
                current = live.detach().clone()
                live.copy_(kept)
                kept.copy_(current)
