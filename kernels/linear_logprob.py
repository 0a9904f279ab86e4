"""Log-prob and entropy only, of `fused_linear_logprob`: what the trainer asks for at every step."""

import torch.distributed as dist
from torch import Tensor

from cascade_rl.kernels.fused_linear_logprob import fused_linear_logprob
from cascade_rl.kernels.vocabulary import IGNORED

__all__ = ["IGNORED", "linear_logprob"]


def linear_logprob(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    temperature: Tensor | float,
    *,
    vocab_size: int,
    tp_group: dist.ProcessGroup | None = None,
    chunk_tokens: int = 1024,
    saved_bytes: int | None = None,
) -> tuple[Tensor, Tensor]:
    """(logprob [tokens], entropy [tokens]) of `fused_linear_logprob`; arguments and errors are its own."""
    outputs = fused_linear_logprob(
        hidden,
        weight,
        targets,
        temperature,
        vocab_size=vocab_size,
        tp_group=tp_group,
        chunk_tokens=chunk_tokens,
        saved_bytes=saved_bytes,
    )
    return outputs.logprob, outputs.entropy
