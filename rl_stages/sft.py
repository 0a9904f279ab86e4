"""Supervised fine-tuning on demonstrations: token-level loss on the assistant turns, with packing.

`heldout` demonstrations have a loss too, before the first step, every `validate_every` steps and after the last. It is
over the same turns, a mean over all their tokens.

The demonstrations of a step depend only on seed and step. So no source is loaded as a whole, and a resumed run uses the
same demonstrations. The trainer packs whole sequences into micro-batches of `token_budget` tokens. A longer sequence is
an error, or is dropped and counted, as `overlong` says. It is never truncated.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cached_property

import numpy as np

from cascade_rl.engine.backend.ranks import from_rank0
from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.train_sequence import TrainSequence
from cascade_rl.engine.train.losses import SftLoss
from cascade_rl.rl_stages.config.sft_stage import SftStage
from cascade_rl.rl_stages.config.source import parse_sources
from cascade_rl.rl_stages.data.blend import Blend
from cascade_rl.rl_stages.data.tokenizer import encode_demonstration
from cascade_rl.rl_stages.session import Session
from cascade_rl.rl_stages.tasks.demonstration import (
    Demonstration,
    Demonstrations,
    open_demonstrations,
    read_demonstrations,
)
from cascade_rl.rl_stages.tasks.row_form import ANY, RowForm
from cascade_rl.rl_stages.training_session import TrainingSession


def run(session: Session[SftStage]) -> None:
    """Runs the remaining steps of the stage. The sampler gets the weights once, at the end."""
    learn(session)
    if session.first_step < session.stage.steps:  # otherwise the sampler has had these weights since the session began
        session.refit(session.stage.steps)


class SftSession(TrainingSession[SftStage]):
    """Of a cascade without domains to evaluate: no sampler, and no held-out scores beside the validation loss."""

    def heldout_scores(self, when: str) -> Mapping[str, float]:
        """See `TrainingSession`."""
        return {}


def learn(session: TrainingSession[SftStage]) -> None:
    """The loop, with a sampler or without."""
    stage = session.stage
    validation = Validation(session)
    if session.first_step == 0 and stage.heldout and not from_rank0(lambda: bool(session.folder.metrics.rows())):
        session.record(0, validation.loss(), validation.tokens)
    mix = Mix(stage.data, session.seed, session.cascade.evaluation.heldout_fraction, RowForm.of(stage))
    for step in session.steps():
        with session.phase("data"):
            batch, dropped = _batch(session, mix, step) if session.log else ([], 0)
        with session.phase("update"):
            metrics = session.trainer.update(batch, SftLoss(), step)
        del metrics["replay_fraction"]  # no sampler chose the experts of demonstrations
        metrics["dropped_sequences"] = dropped
        if (step + 1) % stage.validate_every == 0 or step + 1 == stage.steps:
            metrics |= validation.loss()
        session.record(step + 1, metrics, sum(len(sequence.loss_mask) for sequence in batch))


class Validation:
    """The held-out demonstrations of the stage, encoded once, on rank 0."""

    def __init__(self, session: TrainingSession[SftStage]) -> None:
        self.session = session
        self.sequences = _heldout(session) if session.log and session.stage.heldout else []
        self.tokens = sum(int(sequence.loss_mask.sum()) for sequence in self.sequences)

    def loss(self) -> dict[str, float]:
        """`validation_loss` of the current weights, on rank 0; empty without such demonstrations. Collective."""
        if not self.session.stage.heldout:
            return {}
        with self.session.phase("validation"):
            logprobs = self.session.trainer.log_probs(self.sequences)
        if not self.sequences:
            return {}
        pairs = zip(logprobs, self.sequences, strict=True)
        total = sum(float(logprob[sequence.loss_mask].sum(dtype=np.float64)) for logprob, sequence in pairs)
        return {"validation_loss": -total / self.tokens}


class Mix:
    """The demonstrations of all sources as one endless stream, in the shares that `data` gives or in equal shares.

    The sources are opened on first access, which only rank 0 makes.
    """

    def __init__(self, sources: Sequence[str], seed: int, heldout_fraction: float, form: RowForm = ANY) -> None:
        self.sources = sources
        self._how = (seed, heldout_fraction, form)
        self.blend = Blend([source.weight or Fraction(1) for source in parse_sources(sources)])

    @cached_property
    def streams(self) -> list[Demonstrations]:
        return [open_demonstrations(source, *self._how) for source in self.sources]

    def at(self, position: int) -> Demonstration:
        source, place = self.blend.at(position)
        return self.streams[source].at(place)


def _heldout(session: TrainingSession[SftStage]) -> list[TrainSequence]:
    """Those that fit the budget. UserError if there are such rows and none fits."""
    stage = session.stage
    rows = (row for source in stage.heldout for row in read_demonstrations(source, RowForm.of(stage)))
    found = [sequence for row in rows for sequence in _encode(session, row)]
    kept = [sequence for sequence in found if len(sequence.token_ids) <= stage.token_budget]
    _require_some(kept, stage, "heldout", len(found))
    return kept


def _batch(session: TrainingSession[SftStage], mix: Mix, step: int) -> tuple[list[TrainSequence], int]:
    """The sequences of step `step`, counting from 0, and the number of those that were too long."""
    stage = session.stage
    count = stage.sequences_per_step
    found = [_encode(session, mix.at(position)) for position in range(step * count, (step + 1) * count)]
    sequences = [sequence for demonstration in found for sequence in demonstration]
    kept = [sequence for sequence in sequences if len(sequence.token_ids) <= stage.token_budget]
    _require_some(kept, stage, f"step {step + 1}", len(sequences))
    return kept, len(sequences) - len(kept)


def _require_some(kept: Sequence[TrainSequence], stage: SftStage, where: str, found: int) -> None:
    if found and not kept:
        raise UserError(
            f"{stage.name}: {where}: expected demonstrations of at most token_budget = {stage.token_budget} "
            f"tokens; all {found} found are longer. Raise token_budget or give the stage other data"
        )


def _encode(session: TrainingSession[SftStage], demonstration: Demonstration) -> list[TrainSequence]:
    """One sequence, or several if the chat template drops what was learned (see `encode_demonstration`)."""
    stage, tokenizer = session.stage, session.tokenizer
    try:
        encoded = encode_demonstration(tokenizer, demonstration.messages, demonstration.tools, stage.learned_turns)
    except UserError as error:
        raise UserError(f"{demonstration.where}: {error}") from None
    longest = max(len(ids) for ids, _ in encoded)
    if stage.overlong == "error" and longest > stage.token_budget:
        raise UserError(
            f"{demonstration.where}: expected at most {stage.name}.token_budget = {stage.token_budget} tokens; found "
            f"{longest}. Raise token_budget, drop the row, or set {stage.name}.overlong=drop"
        )
    return [TrainSequence(token_ids=np.array(ids), loss_mask=np.array(learned[1:])) for ids, learned in encoded]
