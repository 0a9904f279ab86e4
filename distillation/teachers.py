"""The teachers of a stage: frozen models of the student's tokens, one at a time on the trainer's ranks."""

import hashlib
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import numpy as np
from torch import Tensor

from cascade_rl.distillation.read_ahead import ReadAhead
from cascade_rl.distillation.seats import OwnSeat, Seat, StudentsSeat
from cascade_rl.distillation.teacher_model import same_model, teacher_config
from cascade_rl.engine.backend.ranks import any_rank, from_rank0
from cascade_rl.engine.core.train_sequence import TrainSequence
from cascade_rl.engine.models import load_hf, read_config
from cascade_rl.engine.train.reference import HostCopy, live_tensors
from cascade_rl.engine.train.trainer import Reader, Trainer

PROBE_TOKENS = 17


class TeacherChanged(RuntimeError):
    """A teacher no longer computes what it computed when it was first loaded."""


@dataclass
class Teacher:
    """One checkpoint, for any number of domains, and where it computes. `probe` holds its log-probs of a fixed
    text, once computed, and `kept` this rank's shard of it, if it stays in memory."""

    folder: Path
    seat: Seat
    probe: np.ndarray | None = None
    kept: HostCopy | None = None


class Teachers:
    """Any number of teachers, each in the seat of its model when its turn comes (seats.py). The student's weights come
    back bit for bit. Folders with the same weights are one teacher. A teacher is probed every time before it scores
    anything.

    Each rank keeps its shards of all teachers in host memory after their first load, if that takes at most
    `memory_bytes` on every node. Otherwise a teacher is read from its checkpoint at most once in a `read`, and the
    next one is read into the page cache meanwhile.

    folders  domain -> Hugging Face folder
    heads    number of a teacher -> its head on the ranks of the last pipeline stage; kept where `keep_heads`
    node_bytes   what the shards of all teachers take on this node, if its ranks have equal shards
    """

    def __init__(
        self, trainer: Trainer, folders: Mapping[str, Path], *, keep_heads: bool = False, memory_bytes: int = 0
    ) -> None:
        self.keep_heads = keep_heads
        contents = from_rank0(lambda: {folder: _content(folder) for folder in set(folders.values())})
        first_of = {contents[folder]: folder for _, folder in sorted(folders.items(), reverse=True)}
        numbers = {content: number for number, content in enumerate(sorted(first_of))}
        self.seats: list[Seat] = []
        self.teachers = [Teacher(folder, self._seat(trainer, folder)) for _, folder in sorted(first_of.items())]
        self.number_of = {domain: numbers[contents[folder]] for domain, folder in folders.items()}
        self.heads: dict[int, Tensor] = {}
        shards = sum(tensor.nbytes for each in self.teachers for tensor in live_tensors(each.seat.model))
        self.node_bytes = shards * int(os.environ["LOCAL_WORLD_SIZE"])
        self.stay = not any_rank(self.node_bytes > memory_bytes)
        self._ahead = ReadAhead()

    def read(
        self, sequences: Sequence[TrainSequence], domains: Sequence[str], reader: Reader
    ) -> list[dict[str, np.ndarray]]:
        """What `reader` computes for each sequence with the teacher of its domain, and the number of that "teacher":
        [n - 1, ...] each, as from `Trainer.read`. The teacher's routers choose their own experts. A rank may give no
        sequences, as there, but gives all domains.

        Values of teachers whose hidden sizes differ have the widest's, with zeros at the end.

        Raises UserError as `load_hf` does, TeacherChanged if a probe differs in any bit.
        """
        wanted = [self.number_of[domain] for domain in domains]
        found: dict[int, dict[str, np.ndarray]] = {}
        order = self._order(set(wanted))
        for seat, numbers in groupby(order, lambda number: self.teachers[number].seat):
            with seat.taken():
                for number in numbers:
                    if number != seat.present:
                        self._load(number)
                        self._read_ahead(order[order.index(number) + 1 :])
                    self._require_unchanged(number)
                    index = [i for i, _ in enumerate(sequences) if wanted[i] == number]
                    told = seat.model.read([replace(sequences[i], routes=None) for i in index], reader)
                    found |= zip(index, told, strict=True)
        _widen(found.values())
        return [
            found[i] | {"teacher": np.full(len(sequence.loss_mask), wanted[i])} for i, sequence in enumerate(sequences)
        ]

    def prefetch(self) -> None:
        """Begins to read, in the background, the checkpoint that the next `read` of all domains loads first, if any."""
        self._read_ahead(self._order(range(len(self.teachers))))

    def _seat(self, trainer: Trainer, folder: Path) -> Seat:
        """That of the teacher's model; a new one for its first teacher."""
        config = teacher_config(f"teacher {folder}", read_config(folder), trainer.hf_config)
        for seat in self.seats:
            if same_model(seat.model.hf_config, config):
                return seat
        own = not same_model(trainer.hf_config, config)
        self.seats.append(OwnSeat(trainer, config) if own else StudentsSeat(trainer))
        return self.seats[-1]

    def _order(self, numbers: Collection[int]) -> list[int]:
        """One seat after the other; in each, the one that is there goes first."""

        def turn(number: int) -> tuple[int, bool, int]:
            seat = self.teachers[number].seat
            return self.seats.index(seat), number != seat.present, number

        return sorted(numbers, key=turn)

    def _read_ahead(self, numbers: Sequence[int]) -> None:
        teachers = {number: self.teachers[number] for number in numbers}
        loaded = [each for number, each in teachers.items() if number != each.seat.present and each.kept is None]
        if loaded:
            self._ahead.start(loaded[0].folder)

    def _load(self, number: int) -> None:
        teacher = self.teachers[number]
        seat, model = teacher.seat, teacher.seat.model
        seat.present = None  # a partly loaded teacher must not be reused
        if teacher.kept:
            teacher.kept.restore(model)
        else:
            load_hf(model.module, teacher.folder, vocab_size=model.hf_config["vocab_size"])
            teacher.kept = HostCopy(model) if self.stay else None
        seat.present = number

    def _require_unchanged(self, number: int) -> None:
        teacher = self.teachers[number]
        probe = _probe(teacher.seat.model)
        if teacher.probe is None:
            teacher.probe = probe
            self._keep_head(number)
        if not np.array_equal(probe, teacher.probe):
            raise TeacherChanged(
                f"teacher {teacher.folder}: expected the log-probs of its probe to have the same bits as when it was "
                f"first loaded, found a gap of {np.abs(probe - teacher.probe).max():.2e}. Its files, or its weights in "
                "memory, changed during the run. The student is unchanged; start the stage again"
            )

    def _keep_head(self, number: int) -> None:
        model = self.teachers[number].seat.model
        if self.keep_heads and model.chunks[-1].post_process:
            self.heads[number] = model.head().weight.detach().clone()


def _probe(model: Trainer) -> np.ndarray:
    ids = np.random.default_rng(0).integers(0, model.hf_config["vocab_size"], PROBE_TOKENS)
    (logprob,) = model.log_probs([TrainSequence(ids, np.ones(PROBE_TOKENS - 1, bool))])
    return logprob


def _widen(found: Collection[dict[str, np.ndarray]]) -> None:
    """Makes all values [tokens, n] of a name as wide as the widest, in place."""
    for name in {name for values in found for name, value in values.items() if value.ndim == 2}:
        widest = max(values[name].shape[1] for values in found)
        for values in found:
            values[name] = np.pad(values[name], ((0, 0), (0, widest - values[name].shape[1])))


def _content(folder: Path) -> str:
    """Hash of all weights of a checkpoint, the names of its files included."""
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.safetensors")):
        digest.update(file.name.encode())
        with file.open("rb") as weights:
            digest.update(hashlib.file_digest(weights, "sha256").digest())
    return digest.hexdigest()
