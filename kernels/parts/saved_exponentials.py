"""The exponentials that forward keeps of a linear head, so that backward need not multiply again.

They are probabilities up to a factor, never logits. The rounding error of 2**(z - k) is relative to the probability. A
logit of 20 in bfloat16 is off by 0.06, and that error multiplies the probability. They have the dtype of backward's
operands: in bfloat16 their error alone would be as large as the rounding of the gradients.
"""

from typing import NamedTuple

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from cascade_rl.kernels.parts.slabs import operand_dtype
from cascade_rl.kernels.parts.vocabulary_tiles import saved_gradients
from cascade_rl.kernels.runtime.configs import Tile
from cascade_rl.kernels.runtime.launch import launch

ROWS, WARPS = 8, 4  # per program of `saved_gradients`


class SavedExponentials(NamedTuple):
    """Saved values of the first columns of a shard, in whole tiles."""

    exponentials: Tensor  # [tokens, saved columns] 2**(z - k + SHIFT)
    tops: Tensor  # [saved tiles, tokens] k of each tile

    @classmethod
    def within(cls, budget: int, rows: Tensor, weight_rows: int, tile: Tile) -> "SavedExponentials":
        """Allocates as many tiles over `weight_rows` as `budget` bytes hold, for rows [tokens, hidden]."""
        dtype, tokens = operand_dtype(rows.dtype), len(rows)
        bytes_per_tile = max(tokens, 1) * (tile.columns * dtype.itemsize + 4)
        tiles = min(budget // bytes_per_tile, triton.cdiv(weight_rows, tile.columns))
        exponentials = rows.new_empty(tokens, tiles * tile.columns, dtype=dtype)
        return cls(exponentials, rows.new_empty(tiles, tokens, dtype=torch.float32))

    @property
    def columns(self) -> int:
        return self.exponentials.shape[1]

    def blocks(self, tokens: slice, tile: Tile) -> TensorDescriptor | None:
        """Descriptor of where `tile_statistics` writes these tokens; None if nothing is saved."""
        if not self.columns:
            return None
        return TensorDescriptor.from_tensor(self.exponentials[tokens], [tile.rows, tile.columns])

    def gradients(
        self, rows: Tensor, log_sum_exp: Tensor, uniform: Tensor, slope: Tensor | None, first: int, out: Tensor
    ) -> None:
        """Writes p (uniform + slope log2 p) to out [tokens, columns], from column `first` on, the first of a tile.

        `rows` [tokens] are rows of the saved tensors; the other inputs are [tokens]. It writes whole tiles, so the
        matrix that `out` is a view of must have room for them.
        """
        tokens, columns = out.shape
        tile_columns = self.columns // len(self.tops)
        launch(
            saved_gradients,
            (triton.cdiv(tokens, ROWS), triton.cdiv(columns, tile_columns)),
            out.device,
            saved_ptr=self.exponentials,
            tops_ptr=self.tops,
            rows_ptr=rows,
            gradients_ptr=out,
            log_sum_exp_ptr=log_sum_exp,
            uniform_ptr=uniform,
            slope_ptr=uniform if slope is None else slope,
            tokens=tokens,
            first=first,
            saved_stride=self.exponentials.stride(0),
            tops_stride=self.tops.stride(0),
            gradients_stride=out.stride(0),
            BM=ROWS,
            BN=tile_columns,
            ENTROPY=slope is not None,
            warps=WARPS,
        )
