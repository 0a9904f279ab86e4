"""The rows of a batch that count: prompts, masked samples and padding are most of an RL batch, and cost nothing.

Plain torch on every device: a gather and a scatter move each row once, which is all a kernel could do.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from cascade_rl.kernels.parts.vocabulary import check_one_device


def compact_rows(rows: Tensor, mask: Tensor) -> Tensor:
    """The rows [tokens, ...] where mask [tokens] bool is true, in order: [active, ...].

    Backward puts each row's gradient in its place and zero elsewhere, without the atomic adds of indexing's own
    backward. Raises ValueError for a mask of another shape or dtype.
    """
    check_mask(mask, len(rows))
    check_one_device(rows=rows, mask=mask)
    return _Compact.apply(rows, mask.nonzero()[:, 0])


def restore_rows(active: Tensor, mask: Tensor) -> Tensor:
    """The inverse, [active, ...] to [tokens, ...], zero where mask is false; differentiable.

    Raises ValueError if mask is not bool [tokens] with as many true values as there are rows.
    """
    index = mask.nonzero()[:, 0]
    if mask.dtype != torch.bool or mask.dim() != 1 or len(index) != len(active):
        raise ValueError(
            f"expected mask bool [tokens] with {len(active)} true values, found {mask.dtype} {list(mask.shape)} "
            f"with {len(index)}"
        )
    return _Restore.apply(active, index, len(mask))


def scatter_rows(values: Tensor, index: Tensor, tokens: int) -> Tensor:
    """`values` [active, ...] at their `index` of [tokens, ...], zero elsewhere."""
    return values.new_zeros(tokens, *values.shape[1:]).index_copy_(0, index, values)


class _Compact(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.tokens = len(rows)
        return rows.index_select(0, index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        return scatter_rows(grad, index, ctx.tokens), None


class _Restore(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, active: Tensor, index: Tensor, tokens: int) -> Tensor:
        ctx.save_for_backward(index)
        return scatter_rows(active, index, tokens)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (index,) = ctx.saved_tensors
        return grad.index_select(0, index), None, None


def check_mask(mask: Tensor, tokens: int) -> None:
    """Raises ValueError unless mask is bool [tokens]."""
    if mask.dtype != torch.bool or mask.shape != (tokens,):
        raise ValueError(f"expected mask bool [{tokens}], found {mask.dtype} {list(mask.shape)}")
