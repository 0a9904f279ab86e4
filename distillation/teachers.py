"""The teachers of a stage: frozen models of the student's tokens, one at a time on the trainer's ranks."""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import numpy as np
from torch import Tensor

from cascade_rl.distillation.read_ahead import ReadAhead
from cascade_rl.distillation.seating import Seating, Teacher
from cascade_rl.engine.backend.ranks import any_rank
from cascade_rl.engine.core.train_sequence import TrainSequence
from cascade_rl.engine.models import load_hf
from cascade_rl.engine.train.reference import HostCopy
from cascade_rl.engine.train.trainer import Reader, Trainer

PROBE_TOKENS = 17


class TeacherChanged(RuntimeError):
    """A teacher no longer computes what it computed when it was first loaded."""


class Teachers:
    """Any number of teachers, each in the seat of its model when its turn comes (seats.py). The student's weights come
    back bit for bit. Folders with the same weights are one teacher. A teacher is probed every time before it scores
    anything.

    Each rank keeps its shards of all teachers in host memory after their first load, if that takes at most
    `memory_bytes` on every node. Otherwise a teacher is read from its checkpoint at most once in a `read`, and the
    next one is read into the page cache meanwhile. Of teachers that are adapters on one base, the base is kept once,
    or not at all if the student's adapters are on it too.

    folders  domain -> Hugging Face folder, or folder of an adapter in PEFT's form
    base     Hugging Face folder of the weights that the student started from
    heads    number of a teacher -> its head on the ranks of the last pipeline stage; kept where `keep_heads`
    node_bytes   what the shards of all teachers take on this node, if its ranks have equal shards
    """

    def __init__(
        self,
        trainer: Trainer,
        folders: Mapping[str, Path],
        *,
        base: Path | None = None,
        keep_heads: bool = False,
        memory_bytes: int = 0,
    ) -> None:
        self.keep_heads = keep_heads
        seating = Seating(trainer, folders, base)
        self.teachers, self.seats, self.number_of = seating.teachers, seating.seats, seating.number_of
        self.heads: dict[int, Tensor] = {}
        self.node_bytes = seating.bytes() * int(os.environ["LOCAL_WORLD_SIZE"])
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
            self._keep(teacher)
        if teacher.adapter:
            teacher.adapter.merge()
        seat.present = number

    def _keep(self, loaded: Teacher) -> None:
        """For all teachers of the folder that has just been loaded."""
        copy = HostCopy(loaded.seat.model) if self.stay else None
        for teacher in self.teachers:
            if (teacher.folder, teacher.seat) == (loaded.folder, loaded.seat):
                teacher.kept = copy

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
