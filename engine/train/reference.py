"""Kept copies of a trainer's weights: the policy's first ones for a KL term, the student's while teachers run, and
those of teachers."""

import torch

from cascade_rl.engine.backend.kept_tensors import KeptTensors
from cascade_rl.engine.train.trainer import Trainer


class Reference(KeptTensors):
    """A copy of this rank's weights and buffers as they are when it is made, on their device or `on_host`. In the block
    of `in_place` the trainer computes with it."""

    def __init__(self, trainer: Trainer, *, on_host: bool = False) -> None:
        super().__init__(live_tensors(trainer), on_host=on_host)


def first_weights(trainer: Trainer) -> KeptTensors:
    """The weights from which the trainer starts, for a KL term: a copy of those of now, or the base of its adapters,
    which is kept in any case."""
    if trainer.lora:
        return trainer.lora.base
    return Reference(trainer, on_host=trainer.parallel.offload_reference)


class HostCopy:
    """This rank's weights and buffers as they are when it is made, in host memory."""

    def __init__(self, trainer: Trainer) -> None:
        self.tensors = [tensor.detach().cpu().clone() for tensor in live_tensors(trainer)]

    @torch.no_grad()
    def restore(self, trainer: Trainer) -> None:
        """Gives the trainer the kept values, to the bit; storages stay."""
        for live, kept in zip(live_tensors(trainer), self.tensors, strict=True):
            live.copy_(kept)


class AdaptersBase:
    """What is under the adapters of a trainer, which it keeps in any case. As a `HostCopy` of these weights."""

    def restore(self, trainer: Trainer) -> None:
        assert trainer.lora
        trainer.lora.base.put_back()


def live_tensors(trainer: Trainer) -> list[torch.Tensor]:
    """This rank's weights and buffers."""
    return [*trainer.module.parameters(), *trainer.module.buffers()]
