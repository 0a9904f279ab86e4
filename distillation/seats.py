"""Where teachers compute: in the student's place if they are its model, otherwise in a model of their own.

Teachers that are adapters on the base of the student's adapters change places with these alone.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from cascade_rl.distillation.lent_memory import LentMemory
from cascade_rl.distillation.teacher_model import teacher_layout
from cascade_rl.engine.models import HfConfig
from cascade_rl.engine.train.reference import Reference
from cascade_rl.engine.train.trainer import Trainer


class Seat(Protocol):
    """For the teachers of one model, one at a time.

    model     computes with the weights of teacher number `present` in the block of `taken`
    present   None: the weights are no teacher's, as when its loading failed
    """

    model: Trainer
    present: int | None

    @contextmanager
    def taken(self) -> Iterator[None]:
        yield


class StudentsSeat(Seat):
    """The trainer. The student's weights come back bit for bit; the last teacher's are kept meanwhile."""

    def __init__(self, trainer: Trainer) -> None:
        self.model, self.present = trainer, None
        self.weights = Reference(trainer, on_host=trainer.parallel.offload_reference)

    @contextmanager
    def taken(self) -> Iterator[None]:
        with self.weights.in_place():
            yield


class AdaptersSeat(Seat):
    """The trainer, whose adapters make way for those of teachers. Nothing is copied: its weights are made again from
    its own base and factors, with the same bits."""

    def __init__(self, trainer: Trainer) -> None:
        self.model, self.present = trainer, None

    @contextmanager
    def taken(self) -> Iterator[None]:
        try:
            yield
        finally:
            self.present = None
            assert self.model.lora
            self.model.lora.merge()


class OwnSeat(Seat):
    """A model beside the trainer's, of its layout, precision and micro-batches. It has memory for weights only in the
    block, so that neither updates nor engines are short of it."""

    def __init__(self, trainer: Trainer, config: HfConfig) -> None:
        self.model = Trainer(
            config,
            teacher_layout(config, trainer.parallel),
            None,
            total_steps=0,
            token_budget=trainer.token_budget,
            seed=0,
            router=trainer.router,
        )
        self.model.replicas = trainer.replicas  # which have the sequences' tokens already
        self.present = None
        self.weights = LentMemory(self.model.module)

    @contextmanager
    def taken(self) -> Iterator[None]:
        try:
            with self.weights.in_place():
                yield
        finally:
            self.present = None
