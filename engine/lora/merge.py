"""W0 + scale B A with the same bits however the weight is cut, so that a trainer and its engines make the same weights.

The last bits of a matrix product depend on the order of its sums, which follows from the shapes and the device. Here no
sum rounds: each row of B and each column of A is first rounded to multiples of a power of two, so coarse that float64
holds every product and every sum exactly (the splitting of Ozaki et al., Numerical Algorithms 59, 2012, of which one
term is enough: a factor keeps 21 bits or more up to rank 512, 24 up to rank 31). What follows is elementwise.
"""

import torch
from torch import Tensor

FLOAT64_BITS = 53
LEAST = 2.0**-500  # below any float32; its multiples and their products are float64


def merged(base: Tensor, b: Tensor, a: Tensor, scale: float) -> Tensor:
    """`base` [outputs, inputs] + scale * `b` [outputs, rank] @ `a` [rank, inputs], in the dtype of `base`."""
    bits = (FLOAT64_BITS - len(a).bit_length()) // 2
    product = _rounded(b, 1, bits) @ _rounded(a, 0, bits)
    return product.mul_(scale).add_(base).to(base.dtype)


def _rounded(factor: Tensor, axis: int, bits: int) -> Tensor:
    """float64, with `bits` bits below the largest entry along `axis`, which is that of the rank and never cut."""
    wide = factor.double()
    largest = wide.abs().amax(axis, keepdim=True).clamp_(min=LEAST)
    step = largest / torch.frexp(largest).mantissa * 2.0**-bits
    return wide.div_(step).round_().mul_(step)
