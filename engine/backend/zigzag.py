"""Context parallelism: splits the tokens of each packed sequence over the ranks that hold the same weights.

A sequence is split into 2 * size equal pieces, of which rank r holds the r-th from the front and the r-th from the
back, so that causal attention is the same work on every rank. This is Transformer Engine's order for packed rows;
Megatron's rotary embeddings and Mamba layers rely on it.
"""

from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor


def zigzag(cu_seqlens: Tensor, size: int, rank: int) -> Tensor:
    """Positions in the packed row of the tokens that a rank holds, in the rank's order.

    cu_seqlens int32 [segments + 1], cumulative lengths; returns int64 [tokens / size].
    Raises ValueError for a segment whose length is not a multiple of 2 * size.
    """
    borders = cu_seqlens.tolist()
    if uneven := [end - start for start, end in pairwise(borders) if (end - start) % (2 * size)]:
        raise ValueError(
            f"expected segments padded to a multiple of {2 * size} tokens (2 x context), found lengths {uneven}"
        )
    pieces = (
        torch.arange(start + piece * length, start + (piece + 1) * length)
        for start, end in pairwise(borders)
        for length in [(end - start) // (2 * size)]
        for piece in (rank, 2 * size - 1 - rank)
    )
    return torch.cat([*pieces]).to(cu_seqlens.device)


def gather(values: Tensor, cu_seqlens: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Undoes the split for values per token: [tokens / size, ...] of each rank -> [tokens, ...] on all.

    Collective, without gradient.
    """
    if group.size() == 1:
        return values
    whole = values.new_empty(group.size() * values.size(0), *values.shape[1:])
    dist.all_gather_into_tensor(whole, values.contiguous(), group=group)
    return in_order(whole, cu_seqlens, group.size())


def in_order(gathered: Tensor, cu_seqlens: Tensor, size: int) -> Tensor:
    """[tokens, ...], concatenated in the order of ranks -> [tokens, ...] in the order of the packed row."""
    return gathered[torch.cat([zigzag(cu_seqlens, size, rank) for rank in range(size)]).argsort()]
