"""Backward of a linear head on a GPU: one slab of columns of the logit gradient (dlogits) exists at a time.

A slab is a range of columns, not of tokens. So each row of the weight's gradient is written once, from a float32 sum
and without atomics. Only the gradient of the hidden states, which is far smaller, is accumulated over slabs.

The operands of the products are float16. It is as fast in tensor cores as bfloat16 and has three more bits, so the
remaining error is the rounding of the result. Because float16 has less range, each operand is first multiplied by a
power of two that brings its largest entry below 2**14. That is exact, and entries that then underflow are at most
2**-38 of the largest. Operands of float32 stay float32.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from cascade_rl.kernels.parts.vocabulary import VocabularyShard
from cascade_rl.kernels.runtime.configs import Config
from cascade_rl.kernels.runtime.launch import config_for

# One column takes the chosen ids of other slabs; eight keep rows aligned for the tensor memory accelerator.
_SPARE_COLUMNS = 8
_LOWEST_TOP = 2.0**-40  # a floor for operands that are almost zero, so that neither scales nor their products overflow

Fill = Callable[[int, int, Tensor], None]


def slab_products(
    rows: Tensor,
    weight: Tensor,
    shard: VocabularyShard,
    fill: Fill,
    scale: Tensor,
    for_rows: bool,
    for_weight: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of rows [tokens, hidden], float32 and summed over ranks, and of weight [vocab / tp, hidden].

    `fill(first, columns, out)` writes to `out` the gradient of the logits, [tokens, columns] from column `first` on,
    times `scale`, which comes from `gradient_scale`. `out` is a view of a matrix that has at least one more column and
    room for whole tiles. The sum over ranks overlaps with the weight gradient of the last slab.
    """
    tokens, width = rows.shape
    grad_rows = torch.zeros(tokens, width, device=rows.device) if for_rows else None
    grad_weight = torch.zeros_like(weight) if for_weight else None
    step = _slab_columns(config_for(rows.device), rows)
    buffer = rows.new_empty(tokens, step + _SPARE_COLUMNS, dtype=operand_dtype(rows.dtype))
    starts = range(0, shard.columns if tokens else 0, step)
    if starts:
        rows_scale, weight_scale = _scale_of(rows), _scale_of(weight[: shard.columns])
        rows_operand = _operand(rows, rows_scale)
    work = None
    for first in starts:
        columns = min(step, shard.columns - first)
        slab = buffer[:, :columns]
        fill(first, columns, slab)
        if grad_rows is not None:
            _add_product(grad_rows, slab, _operand(weight[first : first + columns], weight_scale))
            if first == starts[-1]:
                grad_rows.mul_((scale * weight_scale).reciprocal())
                work = shard.sum(grad_rows)
        if grad_weight is not None:
            product = _product(slab.T, rows_operand)
            torch.mul(product, (scale * rows_scale).reciprocal(), out=grad_weight[first : first + columns])
    if grad_rows is not None and tokens and not starts:  # all padding here, but other ranks wait for the sum
        work = shard.sum(grad_rows)
    if work is not None:
        work.wait()
    return grad_rows, grad_weight


def operand_dtype(dtype: torch.dtype) -> torch.dtype:
    """Dtype of the operands of products in backward, for inputs of `dtype`."""
    return torch.float32 if dtype == torch.float32 else torch.float16


def gradient_scale(bounds: Tensor) -> Tensor:
    """The power of two, a scalar, that brings `bounds` [tokens] on the gradients of the logits below 2**14."""
    return _power_of_two(F.pad(bounds, (0, 1)).amax())


def _scale_of(matrix: Tensor) -> Tensor:
    low, high = matrix.aminmax()
    return _power_of_two(torch.maximum(-low, high).float())


def _power_of_two(top: Tensor) -> Tensor:
    top = top.clamp_min(_LOWEST_TOP)
    mantissa, _ = torch.frexp(top)  # top = mantissa 2**n, so the quotient is exactly 2**-n
    return mantissa / top * 2**14


def _operand(matrix: Tensor, scale: Tensor) -> Tensor:
    scaled = matrix.new_empty(matrix.shape, dtype=operand_dtype(matrix.dtype))
    return torch.mul(matrix, scale, out=scaled)


def _slab_columns(config: Config, rows: Tensor) -> int:
    """Columns per slab: as many whole tiles as `gradient_bytes` holds, at least one.

    A column needs its gradients, its weight row as an operand, and its row of the weight's gradient in float32.
    """
    tokens, width = rows.shape
    size = operand_dtype(rows.dtype).itemsize
    bytes_per_tile = (tokens * size + width * (size + 4)) * config.gradient.columns
    return max(config.gradient_bytes // bytes_per_tile, 1) * config.gradient.columns


def _add_product(sum: Tensor, a: Tensor, b: Tensor) -> None:
    """sum += a @ b; sum is float32, a and b of one dtype."""
    if a.is_cuda and a.dtype != sum.dtype:
        torch.addmm(sum, a, b, out_dtype=sum.dtype, out=sum)
    else:
        sum.addmm_(a.to(sum.dtype), b.to(sum.dtype))


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b in float32; a and b of one dtype."""
    if a.is_cuda and a.dtype != torch.float32:
        return torch.mm(a, b, out_dtype=torch.float32)
    return a.float() @ b.float()
