"""The reward model that a `reward_model` stage trains: the last hidden state of an answer, read by a scalar head."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from cascade_rl.engine.backend.process_groups import initialize_distributed
from cascade_rl.engine.core.settings import OptimizerConfig, ParallelConfig, Precision
from cascade_rl.engine.core.train_sequence import TrainSequence
from cascade_rl.engine.models import read_config
from cascade_rl.engine.models.head import Head
from cascade_rl.engine.train.packing import MicroBatch
from cascade_rl.engine.train.trainer import Trainer
from cascade_rl.rl_stages.core.messages import Message
from cascade_rl.rl_stages.data.control_tokens import encode_text
from cascade_rl.rl_stages.data.tokenizer import encode_prompt
from cascade_rl.rl_stages.rewards.reward_models.bradley_terry.conversation import Conversation

TOKEN_BUDGET = 8192


class TrainedModel:
    """The export of a stage, as the trainer computes it, with its optimizer, on this process alone.

    It is for Nemotron-H, of which transformers has no sequence classifier. UserError if the folder holds no model.
    """

    def __init__(self, folder: Path, precision: Precision) -> None:
        alone = ParallelConfig(precision=precision)
        initialize_distributed(alone, seed=0)
        self._trainer = Trainer(
            read_config(folder),
            alone,
            OptimizerConfig(),
            total_steps=1,
            token_budget=TOKEN_BUDGET,
            seed=0,
            scalar_head=True,
        )
        self._trainer.load_scalar_head(folder)
        self._trainer.load_hf(folder)
        self._tokenizer = AutoTokenizer.from_pretrained(folder)

    def score(self, conversations: Sequence[Conversation]) -> list[float]:
        """One reward for each, in their order."""
        batch = [encode_answer(self._tokenizer, messages, answer) for messages, answer in conversations]
        self._trainer.token_budget = max(TOKEN_BUDGET, *(len(sequence.loss_mask) for sequence in batch))
        return rewards(self._trainer, batch).tolist()


def encode_answer(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], answer: str) -> TrainSequence:
    """Prompt, answer and stop token. The stop token is the only loss token: its hidden state is the one that is scored.

    A position holds a token and predicts the next, so a second stop token follows. UserError as in `encode_prompt`.
    """
    ids = encode_prompt(tokenizer, messages) + encode_text(tokenizer, answer)
    ids += [tokenizer.eos_token_id] * 2
    last = np.arange(len(ids) - 1) == len(ids) - 2
    return TrainSequence(np.array(ids), last)


def rewards(trainer: Trainer, sequences: Sequence[TrainSequence]) -> np.ndarray:
    """One reward per sequence, float32 [sequences], on every rank. The trainer needs a scalar head."""
    return np.array([values["reward"][-1] for values in trainer.read(sequences, _read)], np.float32)


def _read(states: Tensor, head: Head, _batch: MicroBatch) -> dict[str, Tensor]:
    return {"reward": head.scalar(states)}
