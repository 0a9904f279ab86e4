"""The functions of flash-linear-attention (FLA) that Megatron's GatedDeltaNet calls, in plain torch."""

import torch
import torch.nn.functional as F
from torch import Tensor

from cascade_rl.engine.backend import ssm
from cascade_rl.engine.backend.gated_delta import gated_delta_rule, l2norm

__all__ = ["causal_conv1d", "chunk_gated_delta_rule", "l2norm"]


def chunk_gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, *, g: Tensor, beta: Tensor, cu_seqlens: Tensor | None, **fixed: object
) -> tuple[Tensor, None]:
    """[batch, tokens, heads, channels]; g and beta without channels. Neither takes nor returns states."""
    assert not any(fixed.values())
    flat = (x.flatten(0, 1) for x in (q, k, v, g, beta))
    output, _ = gated_delta_rule(*flat, lengths=_lengths(k, cu_seqlens))
    return output.view(v.shape).to(v.dtype), None


def causal_conv1d(
    x: Tensor, *, weight: Tensor, bias: Tensor | None, activation: str, cu_seqlens: Tensor | None, **fixed: object
) -> tuple[Tensor, None]:
    """x [batch, tokens, channels], weight [channels, width]. Summed in float32, as on a GPU."""
    assert activation == "silu" and bias is None and not any(fixed.values())
    lengths = _lengths(x, cu_seqlens)
    sequences = torch.arange(len(lengths), device=x.device).repeat_interleave(lengths)[None]
    summed = ssm.causal_conv1d(x.flatten(0, 1)[None].float(), weight.float(), None, sequences)
    return F.silu(summed).view(x.shape).to(x.dtype), None


def _lengths(x: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """Of the sequences in a packed row [1, tokens, ...], or of the rows [batch, tokens, ...]."""
    if cu_seqlens is None:
        return torch.full((x.size(0),), x.size(1), device=x.device)
    return cu_seqlens.diff().long()
