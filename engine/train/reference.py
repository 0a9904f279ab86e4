"""The policy's first weights, kept for a KL term."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from cascade_rl.engine.train.trainer import Trainer


class Reference:
    """A copy of the trainer's weights and buffers as they are now, on this rank's shards."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.tensors = [tensor.detach().clone() for tensor in self._live()]

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The trainer computes with the kept weights inside the block."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _live(self) -> list[torch.Tensor]:
        return [*self.trainer.module.parameters(), *self.trainer.module.buffers()]

    def _swap(self) -> None:
        """Values change places; storages stay, because the optimizer and DDP hold views of them."""
        with torch.no_grad():
            for live, kept in zip(self._live(), self.tensors, strict=True):
                current = live.detach().clone()
                live.copy_(kept)
                kept.copy_(current)
