"""Memory for the weights of a model that computes now and then."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from cascade_rl.engine.backend.machine import backend


class LentMemory:
    """Memory on their device for a model's weights, which it has in a block only. They are loaded there each time."""

    def __init__(self, model: torch.nn.Module) -> None:
        storages = [parameter.untyped_storage() for parameter in model.parameters()]
        self.sizes = [(storage, storage.nbytes()) for storage in storages]
        self._give_back()

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """In the block, there is memory for the weights; what is in it is whatever was there."""
        for storage, size in self.sizes:
            storage.resize_(size)
        try:
            yield
        finally:
            self._give_back()

    def _give_back(self) -> None:
        for storage, _ in self.sizes:
            storage.resize_(0)
        backend().release()
