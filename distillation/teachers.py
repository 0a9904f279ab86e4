"""The teachers of a stage: frozen models of the student's architecture, one at a time in place of the student."""

import hashlib
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from torch import Tensor

from cascade_rl.distillation.read_ahead import ReadAhead
from cascade_rl.engine.backend.ranks import any_rank, from_rank0
from cascade_rl.engine.core.train_sequence import TrainSequence
from cascade_rl.engine.models import load_hf
from cascade_rl.engine.train.reference import HostCopy, Reference, live_tensors
from cascade_rl.engine.train.trainer import Reader, Trainer

PROBE_TOKENS = 17


class TeacherChanged(RuntimeError):
    """A teacher no longer computes what it computed when it was first loaded."""


@dataclass
class Teacher:
    """One checkpoint, for any number of domains. `probe` holds its log-probs of a fixed text, once computed, and `kept`
    this rank's shard of it, if it stays in memory."""

    folder: Path
    probe: np.ndarray | None = None
    kept: HostCopy | None = None


class Teachers:
    """Any number of teachers in the memory of one more set of weights, each when its turn comes. The student's weights
    come back bit for bit. Folders with the same weights are one teacher. A teacher is probed every time before it
    scores anything.

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
        self.trainer, self.keep_heads = trainer, keep_heads
        contents = from_rank0(lambda: {folder: _content(folder) for folder in set(folders.values())})
        first_of = {contents[folder]: folder for _, folder in sorted(folders.items(), reverse=True)}
        numbers = {content: number for number, content in enumerate(sorted(first_of))}
        self.teachers = [Teacher(first_of[content]) for content in sorted(first_of)]
        self.number_of = {domain: numbers[contents[folder]] for domain, folder in folders.items()}
        self.heads: dict[int, Tensor] = {}
        self.weights = Reference(trainer, on_host=trainer.parallel.offload_reference)
        self.present: int | None = None
        shard = sum(tensor.nbytes for tensor in live_tensors(trainer))
        self.node_bytes = shard * len(self.teachers) * int(os.environ["LOCAL_WORLD_SIZE"])
        self.stay = not any_rank(self.node_bytes > memory_bytes)
        self._ahead = ReadAhead()

    def read(
        self, sequences: Sequence[TrainSequence], domains: Sequence[str], reader: Reader
    ) -> list[dict[str, np.ndarray]]:
        """What `reader` computes for each sequence with the teacher of its domain, and the number of that "teacher":
        [n - 1, ...] each, as from `Trainer.read`. The teacher's routers choose their own experts. A rank may give no
        sequences, as there, but gives all domains.

        Raises UserError as `load_hf` does, TeacherChanged if a probe differs in any bit.
        """
        wanted = [self.number_of[domain] for domain in domains]
        found: dict[int, dict[str, np.ndarray]] = {}
        order = self._order(set(wanted))
        with self.weights.in_place():
            for place, number in enumerate(order):
                if number != self.present:
                    self._load(number)
                    self._read_ahead(order[place + 1 :])
                self._require_unchanged(number)
                index = [i for i, _ in enumerate(sequences) if wanted[i] == number]
                told = self.trainer.read([replace(sequences[i], routes=None) for i in index], reader)
                found |= zip(index, told, strict=True)
        return [
            found[i] | {"teacher": np.full(len(sequence.loss_mask), wanted[i])} for i, sequence in enumerate(sequences)
        ]

    def prefetch(self) -> None:
        """Begins to read, in the background, the checkpoint that the next `read` of all domains loads first, if any."""
        self._read_ahead(self._order(range(len(self.teachers))))

    def _order(self, numbers: Collection[int]) -> list[int]:
        """The one that is there goes first."""
        return sorted(numbers, key=lambda number: (number != self.present, number))

    def _read_ahead(self, numbers: Sequence[int]) -> None:
        loaded = [number for number in numbers if number != self.present and self.teachers[number].kept is None]
        if loaded:
            self._ahead.start(self.teachers[loaded[0]].folder)

    def _load(self, number: int) -> None:
        teacher = self.teachers[number]
        self.present = None  # a partly loaded teacher must not be reused
        if teacher.kept:
            teacher.kept.restore(self.trainer)
        else:
            load_hf(self.trainer.module, teacher.folder)
            teacher.kept = HostCopy(self.trainer) if self.stay else None
        self.present = number

    def _require_unchanged(self, number: int) -> None:
        teacher = self.teachers[number]
        probe = self._probe()
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
        if self.keep_heads and self.trainer.chunks[-1].post_process:
            self.heads[number] = self.trainer.head().weight.detach().clone()

    def _probe(self) -> np.ndarray:
        ids = np.random.default_rng(0).integers(0, self.trainer.hf_config["vocab_size"], PROBE_TOKENS)
        (logprob,) = self.trainer.log_probs([TrainSequence(ids, np.ones(PROBE_TOKENS - 1, bool))])
        return logprob


def _content(folder: Path) -> str:
    """Hash of all weights of a checkpoint, the names of its files included."""
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.safetensors")):
        digest.update(file.name.encode())
        with file.open("rb") as weights:
            digest.update(hashlib.file_digest(weights, "sha256").digest())
    return digest.hexdigest()
