"""Which checkpoints the teachers of a stage are, and where each computes."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cascade_rl.distillation.seats import AdaptersSeat, OwnSeat, Seat, StudentsSeat
from cascade_rl.distillation.teacher_adapter import TeacherAdapter, fits
from cascade_rl.distillation.teacher_model import same_model, teacher_config
from cascade_rl.engine.backend.ranks import from_rank0
from cascade_rl.engine.lora.peft_config import CONFIG, is_adapter, whole_model
from cascade_rl.engine.models import read_config
from cascade_rl.engine.train.reference import AdaptersBase, HostCopy, live_tensors
from cascade_rl.engine.train.trainer import Trainer


@dataclass
class Teacher:
    """One checkpoint, for any number of domains, and where it computes. If it is an `adapter`, `folder` is its base's.
    `probe` holds its log-probs of a fixed text, once computed, and `kept` this rank's shard of `folder`, if that stays
    in memory."""

    folder: Path
    seat: Seat
    adapter: TeacherAdapter | None = None
    probe: np.ndarray | None = None
    kept: HostCopy | AdaptersBase | None = None


class Seating:
    """Folders with the same weights are one teacher. Collective.

    folders  domain -> Hugging Face folder, or folder of an adapter in PEFT's form
    base     Hugging Face folder of the weights that the student started from; None: it is not compared
    number_of   domain -> number of its teacher
    """

    def __init__(self, trainer: Trainer, folders: Mapping[str, Path], base: Path | None) -> None:
        self._trainer, self._base = trainer, base if trainer.lora else None
        self._contents = from_rank0(lambda: _contents({*folders.values(), *filter(None, [self._base])}))
        first_of = {self._contents[folder]: folder for _, folder in sorted(folders.items(), reverse=True)}
        numbers = {content: number for number, content in enumerate(sorted(first_of))}
        self.number_of = {domain: numbers[self._contents[folder]] for domain, folder in folders.items()}
        self.seats: list[Seat] = []
        self.teachers = [self._teacher(folder) for _, folder in sorted(first_of.items())]

    def bytes(self) -> int:
        """Of this rank, if all that can be kept is kept: whole models, each once, and the factors of adapters."""
        loaded = {each.folder: each.seat.model for each in self.teachers if not isinstance(each.kept, AdaptersBase)}
        shards = sum(tensor.nbytes for model in loaded.values() for tensor in live_tensors(model))
        return shards + sum(each.adapter.bytes for each in self.teachers if each.adapter)

    def _teacher(self, folder: Path) -> Teacher:
        if not is_adapter(folder):
            return Teacher(folder, self._seat(folder))
        whole = whole_model(folder)
        if self._base and self._contents[whole] == self._contents[self._base] and fits(folder, self._trainer):
            return Teacher(whole, self._adapters_seat(), TeacherAdapter(self._trainer, folder), kept=AdaptersBase())
        seat = self._seat(whole)
        return Teacher(whole, seat, TeacherAdapter(seat.model, folder))

    def _seat(self, folder: Path) -> Seat:
        """That of the folder's model; a new one for its first teacher."""
        trainer = self._trainer
        config = teacher_config(f"teacher {folder}", read_config(folder), trainer.hf_config)
        for seat in self.seats:
            if not isinstance(seat, AdaptersSeat) and same_model(seat.model.hf_config, config):
                return seat
        own = not same_model(trainer.hf_config, config)
        return self._new(OwnSeat(trainer, config) if own else StudentsSeat(trainer))

    def _adapters_seat(self) -> Seat:
        there = next((seat for seat in self.seats if isinstance(seat, AdaptersSeat)), None)
        return there or self._new(AdaptersSeat(self._trainer))

    def _new(self, seat: Seat) -> Seat:
        self.seats.append(seat)
        return seat


def _contents(folders: set[Path]) -> dict[Path, str]:
    """Hashes of all these, and of the bases of adapters among them."""
    whole = {folder: _content(folder) for folder in {whole_model(folder) for folder in folders}}
    adapters = filter(is_adapter, folders)
    return whole | {folder: _content(folder) + whole[whole_model(folder)] for folder in adapters}


def _content(folder: Path) -> str:
    """Hash of all weights of a checkpoint, the names of its files included, and of the settings of an adapter."""
    digest = hashlib.sha256()
    for file in sorted([*folder.glob("*.safetensors"), *folder.glob(CONFIG)]):
        digest.update(file.name.encode())
        with file.open("rb") as weights:
            digest.update(hashlib.file_digest(weights, "sha256").digest())
    return digest.hexdigest()
