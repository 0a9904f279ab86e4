"""Encodes conversations with their answers as sequences, whose last hidden state a Bradley-Terry head scores."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from cascade_rl.engine.backend.process_groups import initialize_distributed
from cascade_rl.engine.core.settings import OptimizerConfig, ParallelConfig
from cascade_rl.engine.core.train_sequence import TrainSequence
from cascade_rl.engine.models import read_config
from cascade_rl.engine.models.head import Head
from cascade_rl.engine.train.packing import MicroBatch
from cascade_rl.engine.train.trainer import Trainer
from cascade_rl.rl_stages.core.messages import Message
from cascade_rl.rl_stages.data.tokenizer import encode_prompt

TOKEN_BUDGET = 8192


def encode_answer(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], answer: str) -> TrainSequence:
    """Prompt, answer and stop token. The stop token is the only loss token: its hidden state is the one that is scored.

    A position holds a token and predicts the next, so a second stop token follows. UserError as in `encode_prompt`.
    """
    ids = encode_prompt(tokenizer, messages) + tokenizer.encode(answer, add_special_tokens=False)
    ids += [tokenizer.eos_token_id] * 2
    last = np.arange(len(ids) - 1) == len(ids) - 2
    return TrainSequence(np.array(ids), last)


def rewards(trainer: Trainer, sequences: Sequence[TrainSequence]) -> np.ndarray:
    """One reward per sequence, float32 [sequences], on every rank. The trainer needs a scalar head."""
    return np.array([values["reward"][-1] for values in trainer.read(sequences, _read)], np.float32)


def _read(states: Tensor, head: Head, _batch: MicroBatch) -> dict[str, Tensor]:
    return {"reward": head.scalar(states)}


def load(folder: Path) -> Trainer:
    """The reward model on this single rank. UserError if the folder holds none."""
    initialize_distributed(ParallelConfig(), seed=0)
    trainer = Trainer(
        read_config(folder),
        ParallelConfig(),
        OptimizerConfig(),
        total_steps=1,
        token_budget=TOKEN_BUDGET,
        seed=0,
        scalar_head=True,
    )
    trainer.load_scalar_head(folder)
    trainer.load_hf(folder)
    return trainer
