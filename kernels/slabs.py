"""Backward of a linear head on a GPU: the gradient of the logits exists one slab of columns at a time.

Slabs of columns, not of tokens: each row of the weight's gradient is then written once, from a float32 sum, without
atomics, and what is accumulated over slabs is the far smaller gradient of the hidden states.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from cascade_rl.kernels.configs import Config
from cascade_rl.kernels.launch import config_for
from cascade_rl.kernels.vocabulary import VocabularyShard

# One for what belongs to no column of the slab, and rows stay aligned for the tensor memory accelerator.
_SPARE_COLUMNS = 8

Fill = Callable[[int, int, Tensor], None]


def slab_products(
    rows: Tensor, weight: Tensor, shard: VocabularyShard, fill: Fill, for_rows: bool, for_weight: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of rows [tokens, hidden], float32 and summed over ranks, and of weight [vocab / tp, hidden].

    `fill(first, columns, out)` writes the gradient of the logits, [tokens, columns] from column `first` on, to `out`,
    a view of a matrix that has at least one more column. The sum over ranks runs while the last slab's gradient of
    the weight is computed.
    """
    tokens, width = rows.shape
    grad_rows = torch.zeros(tokens, width, device=rows.device) if for_rows else None
    grad_weight = torch.zeros_like(weight) if for_weight else None
    step = _slab_columns(config_for(rows.device), rows)
    buffer = rows.new_empty(tokens, step + _SPARE_COLUMNS)
    starts = range(0, shard.columns if tokens else 0, step)
    work = None
    for first in starts:
        columns = min(step, shard.columns - first)
        slab = buffer[:, :columns]
        fill(first, columns, slab)
        if grad_rows is not None:
            _add_product(grad_rows, slab, weight[first : first + columns])
            if first == starts[-1]:
                work = shard.sum(grad_rows)
        if grad_weight is not None:
            _write_product(grad_weight[first : first + columns], slab.T, rows)
    if grad_rows is not None and tokens and not starts:  # nothing but padding here: the other ranks wait for the sum
        work = shard.sum(grad_rows)
    if work is not None:
        work.wait()
    return grad_rows, grad_weight


def _slab_columns(config: Config, rows: Tensor) -> int:
    """Whole tiles that fit the memory allowed, one at least."""
    bytes_per_tile = max(len(rows), 1) * rows.element_size() * config.gradient.columns
    return max(config.gradient_bytes // bytes_per_tile, 1) * config.gradient.columns


def _add_product(sum: Tensor, a: Tensor, b: Tensor) -> None:
    """sum += a @ b; sum is float32, a and b of one dtype."""
    if a.is_cuda and a.dtype != sum.dtype:
        torch.addmm(sum, a, b, out_dtype=sum.dtype, out=sum)
    else:
        sum.addmm_(a.to(sum.dtype), b.to(sum.dtype))


def _write_product(out: Tensor, a: Tensor, b: Tensor) -> None:
    """out = a @ b, rounded once from a float32 sum; all of one dtype."""
    if a.is_cuda:
        torch.mm(a, b, out=out)
    else:
        out.copy_(a.float() @ b.float())
