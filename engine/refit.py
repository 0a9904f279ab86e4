"""Moves the trainer's weights into the engine, and proves that they arrived.

Every rank copies its own shards into one memory-mapped image of the Hugging Face tensors, which the engine of
the same host maps too; nothing is gathered. Then a probe compares both sides' log-probs on fixed sequences:
an engine that kept an old cache, or half of the old weights, looks healthy otherwise (NeMo-RL#4018,
miles#1958).
"""

from collections.abc import Sequence as ListOf
from pathlib import Path

import numpy as np

from cascade_rl.engine.models import write_hf
from cascade_rl.engine.ranks import from_rank0
from cascade_rl.engine.rollout.client import RolloutEngine
from cascade_rl.engine.sample import Sequence
from cascade_rl.engine.trainer import Trainer


class StaleWeights(RuntimeError):
    """After a refit, the engine's log-probs of the probe sequences are not the trainer's."""


class Refit:
    """One trainer and one engine; `engine` is None on all ranks but 0.

    image      file that the weights are laid out in; `close` removes it, and so does, after a kill, the `close` of
               the next refit that is given the same path
    probe_ids  sequences of token ids to compare on
    bound      largest allowed |log p_train - log p_engine| of any probe token
    """

    def __init__(
        self,
        trainer: Trainer,
        engine: RolloutEngine | None,
        image: Path,
        probe_ids: ListOf[ListOf[int]],
        bound: float,
    ) -> None:
        self.trainer, self.engine, self.image = trainer, engine, image
        self.probe_ids, self.bound = probe_ids, bound
        self.version = -1

    def __call__(self, version: int) -> float:
        """Collective. Returns the probe's largest gap. Raises StaleWeights where it is beyond the bound."""
        write_hf(self.trainer.module, self.trainer.hf_config, self.image)
        self.version = version
        self.send()
        return self._probe()

    def send(self) -> None:
        """Gives the engine the newest image; rank 0 repeats it by itself for an engine that was restarted."""
        if self.engine:
            self.engine.update_weights(self.image, self.version)

    def close(self) -> None:
        self.image.unlink(missing_ok=True)

    def _probe(self) -> float:
        scores = from_rank0(lambda: self.engine.score(self.probe_ids) if self.engine else [])
        sequences = [whole_sequence(ids, score.routes) for ids, score in zip(self.probe_ids, scores, strict=True)]
        ours = self.trainer.log_probs(sequences)
        gaps = [np.abs(mine - score.logprobs).max() for mine, score in zip(ours, scores, strict=True)]
        gap = float(np.max(gaps))  # NaN if any is
        if not gap <= self.bound:
            raise StaleWeights(
                f"after the refit to weight version {self.version} trainer and engine differ by {gap:.2e} on "
                f"the probe sequences, expected at most {self.bound:.0e} (rollout.probe_bound): the engine "
                "does not sample from the weights that were sent"
            )
        return gap


def whole_sequence(ids: ListOf[int], routes: np.ndarray | None = None) -> Sequence:
    """A sequence all of whose tokens count, as probes are compared."""
    return Sequence(token_ids=np.array(ids), loss_mask=np.ones(len(ids) - 1, np.bool_), routes=routes)
