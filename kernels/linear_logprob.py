"""Log-prob and entropy from `fused_linear_logprob`: the two outputs that the trainer needs at every step."""

import torch.distributed as dist
from torch import Tensor

from cascade_rl.kernels.fused_linear_logprob import fused_linear_logprob
from cascade_rl.kernels.kept_logprob import kept_logprob
from cascade_rl.kernels.parts.vocabulary import IGNORED

__all__ = ["IGNORED", "linear_logprob"]


def linear_logprob(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    temperature: Tensor | float,
    *,
    vocab_size: int,
    kept: Tensor | None = None,
    tp_group: dist.ProcessGroup | None = None,
    chunk_tokens: int = 1024,
    saved_bytes: int | None = None,
) -> tuple[Tensor, Tensor]:
    """(logprob [tokens], entropy [tokens]) of `fused_linear_logprob`, with the same arguments and errors.

    With `kept`, int64 [tokens, kept], the log-prob is `kept_logprob`; the entropy is still over the whole vocabulary.
    """
    outputs = fused_linear_logprob(
        hidden,
        weight,
        targets,
        temperature,
        vocab_size=vocab_size,
        candidates=kept,
        tp_group=tp_group,
        chunk_tokens=chunk_tokens,
        saved_bytes=saved_bytes,
    )
    return outputs.logprob if kept is None else kept_logprob(outputs, targets, kept), outputs.entropy
