"""The teachers of a stage: frozen models of the student's architecture, one at a time in the student's place."""

from collections.abc import Mapping
from collections.abc import Sequence as ListOf
from dataclasses import replace
from pathlib import Path

import numpy as np

from cascade_rl.engine.models import load_hf
from cascade_rl.engine.reference import Reference
from cascade_rl.engine.sample import Sequence
from cascade_rl.engine.trainer import Trainer


class Teachers:
    """However many they are, they take the memory of one more set of weights: each is read from its checkpoint, which
    the page cache holds, when its turn comes. The student's weights come back to the bit.

    folders  domain -> Hugging Face folder
    """

    def __init__(self, trainer: Trainer, folders: Mapping[str, Path]) -> None:
        self.trainer, self.folders = trainer, folders
        self.weights = Reference(trainer)
        self.present: Path | None = None

    def log_probs(self, sequences: ListOf[Sequence], domains: ListOf[str]) -> list[np.ndarray]:
        """Log-probs as of `Trainer.log_probs`, each sequence by the teacher of its domain, whose routers choose.

        Raises UserError as `load_hf` does.
        """
        folders = [self.folders[domain] for domain in domains]
        found: dict[int, np.ndarray] = {}
        with self.weights.in_place():
            for folder in sorted(set(folders), key=lambda folder: (folder != self.present, folder)):
                self._enter(folder)
                index = [i for i, wanted in enumerate(folders) if wanted == folder]
                scored = self.trainer.log_probs([replace(sequences[i], routes=None) for i in index])
                found |= zip(index, scored, strict=True)
        return [found[i] for i in range(len(sequences))]

    def _enter(self, folder: Path) -> None:
        if folder != self.present:
            load_hf(self.trainer.module, folder)
            self.present = folder
