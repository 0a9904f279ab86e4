"""The same sequences, scored by the trainer and by its engines. Refits and certificates compare the scores."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cascade_rl.engine.backend.ranks import from_rank0
from cascade_rl.engine.core.train_sequence import TrainSequence
from cascade_rl.engine.rollout.engine import Engine
from cascade_rl.engine.sync.gap import Gap, gap_of
from cascade_rl.engine.train.trainer import Trainer


@dataclass(frozen=True)
class Probe:
    """Both sides' log-probs, float32 [n - 1] for each sequence of n tokens.

    replay_fraction  share of the engine's expert choices that the trainer used; 1.0 for a dense model
    routes           those choices, int16 [n - 1, moe_layers, topk] for each sequence; empty if there are none
    """

    trainer: list[np.ndarray]
    engine: list[np.ndarray]
    replay_fraction: float
    routes: Sequence[np.ndarray] = ()

    @property
    def gap(self) -> Gap:
        return gap_of(self.trainer, self.engine)


def probe(trainer: Trainer, engine: Engine | None, ids: Sequence[Sequence[int]]) -> Probe:
    """Collective; `engine` is None but on rank 0. The trainer uses the experts that the engine chose."""
    scores = from_rank0(lambda: engine.score(ids) if engine else [])
    sequences = [whole_sequence(tokens, score.routes) for tokens, score in zip(ids, scores, strict=True)]
    logprobs, replayed = trainer.replayed_log_probs(sequences)
    routes = [score.routes for score in scores if score.routes is not None]
    return Probe(logprobs, [score.logprobs for score in scores], replayed, routes)


def whole_sequence(ids: Sequence[int], routes: np.ndarray | None = None) -> TrainSequence:
    """A sequence of which all tokens count, as in a probe."""
    return TrainSequence(token_ids=np.array(ids), loss_mask=np.ones(len(ids) - 1, np.bool_), routes=routes)
