"""Supervised fine-tuning on demonstrations: token-level loss on the assistant's last turn, packed."""

import numpy as np

from cascade_rl.engine.losses import SftLoss
from cascade_rl.engine.ranks import from_rank0
from cascade_rl.engine.sample import Sequence
from cascade_rl.rl_stages.config import SftStage
from cascade_rl.rl_stages.session import Session
from cascade_rl.rl_stages.task import load_demonstrations
from cascade_rl.rl_stages.tokenizer import encode_demonstration


def run(session: Session[SftStage]) -> None:
    """All steps that the stage still has to take. The sampler gets the weights once, at the end."""
    stage = session.stage
    demonstrations = from_rank0(lambda: _encode_all(session))
    for step in session.steps():
        first = step * stage.sequences_per_step
        batch = demonstrations[first : first + stage.sequences_per_step]
        with session.phase("update"):
            metrics = session.trainer.update(batch, SftLoss(), step)
        del metrics["replay_fraction"]  # no sampler chose the experts of demonstrations
        session.record(step + 1, metrics, sum(len(sequence.loss_mask) for sequence in batch))
    if session.first_step < stage.steps:  # otherwise the sampler has had these weights since the session began
        session.refit(stage.steps)


def _encode_all(session: Session[SftStage]) -> list[Sequence]:
    """Every demonstration of the stage in the order of training; the sources take turns."""
    stage = session.stage
    count = stage.steps * stage.sequences_per_step
    each = -(-count // len(stage.data))
    sources = [load_demonstrations(source, count=each, seed=session.seed) for source in stage.data]
    mixed = [conversation for turn in zip(*sources, strict=True) for conversation in turn]
    return [_encode(session, conversation) for conversation in mixed[:count]]


def _encode(session: Session[SftStage], conversation: tuple) -> Sequence:
    token_ids, learned = encode_demonstration(session.tokenizer, conversation)
    return Sequence(token_ids=np.array(token_ids), loss_mask=np.array(learned[1:]))
