"""Rewards of a model that transformers opens as a sequence classifier with one label, whatever its family.

An answer is one forward pass: padding would let a reward depend on the other answers of its batch, and the thousand
tokens of an answer are enough work for a GPU. Hidden states have the dtype of the engines, the head is in float32:
bfloat16 has steps of 0.03 at a reward of 7. Between the groups the weights are in pinned host memory: the trainer needs
the room on the GPU.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import (
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
)

from cascade_rl.engine.backend.machine import backend
from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.rewards.reward_models.bradley_terry.conversation import Conversation, as_messages
from cascade_rl.rl_stages.rewards.reward_models.bradley_terry.trained_model import encode_answer

Encode = Callable[[Conversation], Sequence[int]]
HEAD = "score.weight"


class ClassifierModel:
    """The reward of a conversation is the model's output at the last of the ids that `encode` makes of it."""

    def __init__(self, model: PreTrainedModel, encode: Encode) -> None:
        self._model, self._encode = model, encode
        self._device = backend().device
        model.config.use_cache = False
        for tensor in self._tensors():
            tensor.data = backend().at_rest(tensor.data)

    @torch.no_grad()
    def score(self, conversations: Sequence[Conversation]) -> list[float]:
        """One reward for each, in their order."""
        with self._on_device():
            return [self._reward(self._encode(conversation)) for conversation in conversations]

    def _reward(self, ids: Sequence[int]) -> float:
        return float(self._model(torch.tensor([ids], device=self._device)).logits)

    def _tensors(self) -> Iterator[Tensor]:
        return chain(self._model.parameters(), self._model.buffers())

    @contextmanager
    def _on_device(self) -> Iterator[None]:
        at_rest = [(tensor, tensor.data) for tensor in self._tensors()]
        for tensor, data in at_rest:
            tensor.data = data.to(self._device, non_blocking=True)
        try:
            yield
        finally:
            for tensor, data in at_rest:
                tensor.data = data
            backend().release()


def is_classified(folder: Path) -> bool:
    """Whether transformers has a sequence classifier of the model's family."""
    return type(AutoConfig.from_pretrained(folder)) in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING


def checkpoint(folder: Path, dtype: torch.dtype) -> ClassifierModel:
    """A reward model as it was published, with its own chat template. UserError for any other model."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if tokenizer.chat_template is None:
        raise UserError(f"{folder}: expected a reward model's tokenizer with a chat template, found none. Add it")
    labels = AutoConfig.from_pretrained(folder).num_labels
    model, missing = _load(folder, dtype) if labels == 1 and is_classified(folder) else (None, {HEAD})
    if model is None or missing:
        raise UserError(
            f"{folder}: expected a reward model, which is a sequence classifier of transformers with one label, found "
            f"{labels} labels and no {', '.join(sorted(missing))}. Name such a checkpoint or a reward_model stage"
        )
    return ClassifierModel(
        _with_exact_head(model),
        lambda asked: tokenizer.apply_chat_template(as_messages(asked), tokenize=True, return_dict=False),
    )


def export(folder: Path, dtype: torch.dtype, head: Path) -> ClassifierModel:
    """The export of a reward_model stage: a causal model, with its scalar head in the file `head`."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = _with_exact_head(_load(folder, dtype)[0])
    (weight,) = load_file(head).values()
    model.get_parameter(HEAD).data.copy_(weight)
    model.config.pad_token_id = None  # else the reward is read at the last token that is not padding
    return ClassifierModel(model, lambda asked: encode_answer(tokenizer, *asked).token_ids[:-1].tolist())


def _load(folder: Path, dtype: torch.dtype) -> tuple[PreTrainedModel, set[str]]:
    """The model, and the names of its weights that the folder lacks."""
    model, found = AutoModelForSequenceClassification.from_pretrained(
        folder, dtype=dtype, num_labels=1, output_loading_info=True
    )
    return model, set(found["missing_keys"])


def _with_exact_head(model: PreTrainedModel) -> PreTrainedModel:
    def widen(_: torch.nn.Module, states: tuple[Tensor, ...]) -> Any:
        return tuple(state.float() for state in states)

    head = getattr(model, "score", None)
    if isinstance(head, torch.nn.Linear):  # the head of every decoder
        head.float().register_forward_pre_hook(widen)
    return model
