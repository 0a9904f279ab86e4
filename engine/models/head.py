"""The output layer that hands out hidden states: logits are made, and at once consumed, by `kernels/`."""

from megatron.core.models.hybrid.hybrid_model import HybridModel
from megatron.core.tensor_parallel.layers import ColumnParallelLinear
from torch import Tensor


class OwnedHead(ColumnParallelLinear):
    """Holds the head weight and leaves its use to the caller.

    On the last stage `model(...)` then gives hidden states [1, tokens, hidden]; under sequence parallelism,
    those of this rank's tokens.
    """

    def forward(
        self, input_: Tensor, weight: Tensor | None = None, runtime_gather_output: bool | None = None
    ) -> tuple[Tensor, None]:
        return input_, None


def head_weight(model: HybridModel) -> Tensor:
    """[padded vocabulary / tensor, hidden] on the last stage: its own, or the embedding it is tied to."""
    if model.share_embeddings_and_output_weights:
        return model.shared_embedding_or_output_weight()
    return model.output_layer.weight
