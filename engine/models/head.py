"""The output layers. They return hidden states: only `kernels/` computes logits, and consumes them at once."""

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

    On the last stage `model(...)` then returns hidden states [1, tokens, hidden]; under sequence parallelism,
    those of this rank's tokens.
    """

    def forward(
        self, input_: Tensor, weight: Tensor | None = None, runtime_gather_output: bool | None = None
    ) -> tuple[Tensor, None]:
        return input_, None


class ScalarHead(torch.nn.Module):
    """One number per hidden state. It starts at 0: no answer is better. Each rank of the last stage holds all of it."""

    def __init__(self, hidden: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1, hidden, dtype=dtype))


@dataclass(frozen=True)
class Head:
    """The head that reads the hidden states [tokens, hidden] of the last stage.

    weight  [padded vocabulary / tensor, hidden], or [1, hidden] of a scalar head
    """

    weight: Tensor
    vocab_size: int
    tp_group: dist.ProcessGroup | None

    def logprob(
        self, states: Tensor, targets: Tensor, temperature: Tensor, kept: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Log-prob over the `kept` ids [tokens, kept], entropy over the whole vocabulary; float32 [tokens] each."""
        return linear_logprob(
            states, self.weight, targets, temperature, vocab_size=self.vocab_size, kept=kept, tp_group=self.tp_group
        )

    def scalar(self, states: Tensor) -> Tensor:
        """One number for each hidden state, float32 [tokens]: bfloat16 has steps of 0.03 at a reward of 7."""
        return (states.float() @ self.weight.float().T).squeeze(1)


def add_scalar_head(model: HybridModel) -> None:
    """Adds a scalar head to the last stage. The vocabulary's head is frozen, unless it is tied to the embedding."""
    if not model.post_process:
        return
    model.scalar_head = ScalarHead(model.config.hidden_size, model.config.params_dtype)
    if not model.share_embeddings_and_output_weights:
        model.output_layer.weight.requires_grad_(False)


def head_weight(model: HybridModel) -> Tensor:
    """The head's weight on the last stage: the scalar head [1, hidden] of a model that has one, otherwise [padded
    vocabulary / tensor, hidden], which may be the embedding's."""
    if hasattr(model, "scalar_head"):
        return model.scalar_head.weight
    if model.share_embeddings_and_output_weights:
        return model.shared_embedding_or_output_weight()
    return model.output_layer.weight


def save_scalar_head(model: HybridModel, folder: Path) -> None:
    """Writes the head into an export folder. One rank of the last stage calls it."""
    save_file({SCALAR_HEAD: head_weight(model).detach().cpu().contiguous()}, folder / SCALAR_HEAD_FILE)


@torch.no_grad()
def load_scalar_head(model: HybridModel, folder: Path) -> None:
    """Reads the head, on ranks that hold it. Raises UserError if the folder is not a reward model's."""
    path = folder / SCALAR_HEAD_FILE
    if not path.is_file():
        raise UserError(
            f"{folder}: expected the export of a reward_model stage, found no {SCALAR_HEAD_FILE} in it. "
            "Name such a stage, or its export folder"
        )
    if model.post_process:
        head_weight(model).copy_(load_file(path)[SCALAR_HEAD])
