"""The output layers, which hand out hidden states: logits are made, and at once consumed, by `kernels/`."""

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from megatron.core.models.hybrid.hybrid_model import HybridModel
from megatron.core.tensor_parallel.layers import ColumnParallelLinear
from safetensors.torch import load_file, save_file
from torch import Tensor

from cascade_rl.engine.core.errors import UserError
from cascade_rl.kernels.linear_logprob import linear_logprob

SCALAR_HEAD = "scalar_head.weight"
SCALAR_HEAD_FILE = "scalar_head.safetensors"


class OwnedHead(ColumnParallelLinear):
    """Holds the head weight and leaves its use to the caller.

    On the last stage `model(...)` then gives hidden states [1, tokens, hidden]; under sequence parallelism,
    those of this rank's tokens.
    """

    def forward(
        self, input_: Tensor, weight: Tensor | None = None, runtime_gather_output: bool | None = None
    ) -> tuple[Tensor, None]:
        return input_, None


class ScalarHead(torch.nn.Module):
    """One number per hidden state; each rank of the last stage holds all of it. It starts at 0: no answer is better."""

    def __init__(self, hidden: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1, hidden, dtype=dtype))


@dataclass(frozen=True)
class Head:
    """What reads the hidden states [tokens, hidden] of the last stage.

    weight  [padded vocabulary / tensor, hidden], or [1, hidden] of a scalar head
    """

    weight: Tensor
    vocab_size: int
    tp_group: dist.ProcessGroup | None

    def logprob(
        self, states: Tensor, targets: Tensor, temperature: Tensor, kept: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Log-prob, over the `kept` ids [tokens, kept] of each token, and entropy, over all; float32 [tokens] each."""
        return linear_logprob(
            states, self.weight, targets, temperature, vocab_size=self.vocab_size, kept=kept, tp_group=self.tp_group
        )

    def scalar(self, states: Tensor) -> Tensor:
        """Float32 [tokens]."""
        return (states @ self.weight.T).squeeze(1).float()


def add_scalar_head(model: HybridModel) -> None:
    """To the last stage, in place of the vocabulary's, which then stays as it is unless the embedding is tied to it."""
    if not model.post_process:
        return
    model.scalar_head = ScalarHead(model.config.hidden_size, model.config.params_dtype)
    if not model.share_embeddings_and_output_weights:
        model.output_layer.weight.requires_grad_(False)


def head_weight(model: HybridModel) -> Tensor:
    """[padded vocabulary / tensor, hidden] on the last stage: its own, or the embedding it is tied to; of a model with
    a scalar head, that."""
    if hasattr(model, "scalar_head"):
        return model.scalar_head.weight
    if model.share_embeddings_and_output_weights:
        return model.shared_embedding_or_output_weight()
    return model.output_layer.weight


def save_scalar_head(model: HybridModel, folder: Path) -> None:
    """Writes the head beside an export. One rank of the last stage calls it."""
    save_file({SCALAR_HEAD: head_weight(model).detach().cpu().contiguous()}, folder / SCALAR_HEAD_FILE)


@torch.no_grad()
def load_scalar_head(model: HybridModel, folder: Path) -> None:
    """Reads it back, where this rank holds it. Raises UserError where the folder is no reward model."""
    path = folder / SCALAR_HEAD_FILE
    if not path.is_file():
        raise UserError(
            f"{folder}: expected the export of a reward_model stage, found no {SCALAR_HEAD_FILE} in it. "
            "Name such a stage, or its export folder"
        )
    if model.post_process:
        head_weight(model).copy_(load_file(path)[SCALAR_HEAD])
