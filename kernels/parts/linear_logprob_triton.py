"""`fused_linear_logprob` in Triton: forward in one pass over tiles, backward in slabs of logit gradients (dlogits)."""

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable
from triton.tools.tensor_descriptor import TensorDescriptor

from cascade_rl.kernels.parts.linear_logprob_torch import arriving
from cascade_rl.kernels.parts.saved_exponentials import SavedExponentials
from cascade_rl.kernels.parts.slabs import gradient_scale, slab_products
from cascade_rl.kernels.parts.vocabulary import IGNORED, VocabularyShard, scatter_rows
from cascade_rl.kernels.parts.vocabulary_tiles import chosen_logits, logit_gradients, merge_statistics, tile_statistics
from cascade_rl.kernels.runtime.configs import Config
from cascade_rl.kernels.runtime.launch import (
    column_blocks,
    config_for,
    launch,
    merge,
    programs,
    row_blocks,
    tma_operand,
)

LOG2_E = 1 / math.log(2)
LN_2 = math.log(2)

_DOT_IDS, _DOT_LANES = 4, 512


class LinearLogprobFunction(torch.autograd.Function):
    """(hidden, weight, chosen [tokens, ids], ...) -> logprob [tokens, ids], entropy, log_sum_exp [tokens]."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        chosen: Tensor,
        inverse_temperature: Tensor,
        shard: VocabularyShard,
        saved_bytes: int | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        active = (chosen[:, 0] != IGNORED).nonzero()[:, 0]
        local = shard.local(chosen[active]).int()
        scale = inverse_temperature[active] * LOG2_E
        rows = hidden.index_select(0, active)
        config = config_for(rows.device)
        if saved_bytes is None:
            saved_bytes = config.saved_bytes
        saved = SavedExponentials.within(saved_bytes, rows, len(weight), config.statistics)
        statistics = _gathered_statistics(rows, weight, local, scale, shard, config, saved)
        k, total, weighted, *chosen_z = statistics  # [tokens] each
        log_total = total.log2()
        log_p = (torch.stack(chosen_z, 1) - k[:, None] - log_total[:, None]).clamp_max_(0)
        entropy = (log_total - weighted / total) * LN_2  # both terms are positive, so nothing cancels
        log_sum_exp = k + log_total  # in log2

        ctx.save_for_backward(hidden, weight, chosen, inverse_temperature, active, log_sum_exp, entropy, log_p, *saved)
        ctx.shard = shard
        ctx.set_materialize_grads(False)
        logprob = log_p.masked_fill(chosen[active] == IGNORED, 0) * LN_2
        tokens = len(chosen)
        return (
            scatter_rows(logprob, active, tokens),
            scatter_rows(entropy, active, tokens),
            scatter_rows(log_sum_exp * LN_2, active, tokens),
        )

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_logprob: Tensor | None, grad_entropy: Tensor | None, grad_log_sum_exp: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        hidden, weight, chosen, inverse_temperature, *saved = ctx.saved_tensors
        forward_rows, log_sum_exp, entropy, log_p, exponentials, tops = saved
        shard: VocabularyShard = ctx.shard
        grad_logprob, rows = arriving(chosen, torch.float32, grad_logprob, grad_entropy, grad_log_sum_exp)
        among = torch.searchsorted(forward_rows, rows)  # their positions among forward's rows
        log_sum_exp, entropy, log_p = log_sum_exp[among], entropy[among], log_p[among]

        inverse, chosen = inverse_temperature[rows], chosen[rows]
        g_chosen = grad_logprob[rows] * inverse[:, None]
        uniform = -g_chosen.sum(1)
        slope = None
        if grad_log_sum_exp is not None:
            uniform += grad_log_sum_exp[rows] * inverse
        if grad_entropy is not None:
            g_entropy = grad_entropy[rows] * inverse
            uniform -= g_entropy * entropy
            slope = -g_entropy * LN_2

        bounds = uniform.abs() + g_chosen.abs().sum(1)
        if slope is not None:
            bounds += slope.abs()  # p log2 p lies above -1
        gradient_factor = gradient_scale(bounds)

        gradients = _LogitGradients(
            rows=hidden.index_select(0, rows),
            weight=weight,
            scale=inverse * LOG2_E,
            log_sum_exp=log_sum_exp,
            uniform=uniform * gradient_factor,
            slope=None if slope is None else slope * gradient_factor,
            local=shard.local(chosen),
            on_chosen=_on_chosen(chosen, log_p, g_chosen, uniform, slope) * gradient_factor,
            among=among,
            saved=SavedExponentials(exponentials, tops),
        )
        grad_rows, grad_weight = slab_products(
            gradients.rows, weight, shard, gradients.slab, gradient_factor, *ctx.needs_input_grad[:2]
        )
        grad_hidden = None if grad_rows is None else scatter_rows(grad_rows, rows, len(hidden)).to(hidden.dtype)
        return grad_hidden, grad_weight, None, None, None, None


def _gathered_statistics(
    rows: Tensor,
    weight: Tensor,
    local: Tensor,
    scale: Tensor,
    shard: VocabularyShard,
    config: Config,
    saved: SavedExponentials,
) -> Tensor:
    """[3 + ids, tokens] over the whole vocabulary: k, total, weighted total, z of each chosen id. Fills `saved`."""
    group_columns = config.group_columns(shard.vocab_size)
    groups, ids, tokens = triton.cdiv(len(weight), group_columns), local.shape[1], len(rows)
    if not tokens:
        return scale.new_empty(3 + ids, 0)
    mine = scale.new_empty(3 * groups + ids, tokens)
    of_groups = mine[: 3 * groups].unflatten(0, (groups, 3))
    _local_statistics(rows, weight, scale, shard, config, group_columns, saved, out=of_groups)
    _chosen_logits(rows, weight, local, scale, out=mine[3 * groups :])

    gathered = shard.gather(mine)
    parts = gathered[:, : 3 * groups].contiguous().view(-1, 3, tokens)
    merged = scale.new_empty(1, 3, tokens)
    merge(merge_statistics, parts, merged, fan=len(parts))
    return torch.cat([merged[0], gathered[:, 3 * groups :].amax(0)])


def _local_statistics(
    rows: Tensor,
    weight: Tensor,
    scale: Tensor,
    shard: VocabularyShard,
    config: Config,
    group_columns: int,
    saved: SavedExponentials,
    out: Tensor,
) -> None:
    """This rank's statistics, merged up to groups of columns; out [groups, 3, tokens]. Fills `saved`."""
    tile = config.statistics
    weight_blocks = column_blocks(tma_operand(weight), tile)
    column_tiles = triton.cdiv(len(weight), tile.columns)
    for start in range(0, len(rows), config.launch_tokens):
        chunk = slice(start, min(start + config.launch_tokens, len(rows)))
        tokens = chunk.stop - start
        tiles = scale.new_empty(column_tiles, 3, tokens)
        launch(
            tile_statistics,
            (programs(rows.device, triton.cdiv(tokens, tile.rows) * column_tiles),),
            rows.device,
            hidden=row_blocks(tma_operand(rows[chunk]), tile),
            weight=weight_blocks,
            scale_ptr=scale[chunk],
            statistics_ptr=tiles,
            saved=saved.blocks(chunk, tile),
            tokens=tokens,
            columns=shard.columns,
            rows=len(weight),
            width=rows.shape[1],
            BM=tile.rows,
            BN=tile.columns,
            BK=tile.depth(rows.element_size()),
            BAND=tile.band,
            warps=tile.warps,
            stages=config.saving_stages if saved.columns else tile.stages,
        )
        saved.tops[:, chunk] = tiles[: len(saved.tops), 0]
        merge(merge_statistics, tiles, out[:, :, chunk], fan=group_columns // tile.columns)


def _chosen_logits(rows: Tensor, weight: Tensor, local: Tensor, scale: Tensor, out: Tensor) -> None:
    """out [ids, tokens]: z of the chosen ids that this rank owns."""
    weight = weight if weight.stride(1) == 1 else weight.contiguous()
    launch(
        chosen_logits,
        (len(rows), triton.cdiv(local.shape[1], _DOT_IDS)),
        rows.device,
        hidden_ptr=rows,
        weight_ptr=weight,
        scale_ptr=scale,
        chosen_ptr=local,
        logits_ptr=out,
        ids=local.shape[1],
        width=rows.shape[1],
        hidden_stride=rows.stride(0),
        weight_stride=weight.stride(0),
        out_stride=out.stride(0),
        BI=_DOT_IDS,
        BK=_DOT_LANES,
        warps=4,
    )


def _on_chosen(chosen: Tensor, log_p: Tensor, g_chosen: Tensor, uniform: Tensor, slope: Tensor | None) -> Tensor:
    """[tokens, ids]: the whole gradient of each chosen column's logit. An id that occurs twice has it twice.

    It is computed in float32 from the exact log-prob. Where p is near 1, p * uniform and the column's own gradient
    cancel, and only the rounding error would be left if the terms were in bfloat16.
    """
    factor = uniform[:, None] if slope is None else uniform[:, None] + slope[:, None] * log_p
    same = chosen[:, :, None] == chosen[:, None, :]
    own = torch.where(same, g_chosen[:, None, :], 0).sum(2)
    return log_p.exp2() * factor + own


@dataclass(frozen=True)
class _LogitGradients:
    """The inputs of the gradient of the logits, of which one slab of columns exists at a time."""

    rows: Tensor  # [tokens, hidden]
    weight: Tensor  # [vocab / tp, hidden]
    scale: Tensor  # [tokens], and so are the next three
    log_sum_exp: Tensor
    uniform: Tensor
    slope: Tensor | None
    local: Tensor  # [tokens, ids] int64, column or -1
    on_chosen: Tensor  # [tokens, ids]
    among: Tensor  # [tokens] int64, rows of the saved tensors
    saved: SavedExponentials

    def slab(self, first: int, columns: int, out: Tensor) -> None:
        """Writes out [tokens, columns], the columns from `first` on. Saved columns need no product.

        `out` is a view of a matrix with at least one more column, which takes the values of ids in other slabs.
        """
        split = min(max(self.saved.columns - first, 0), columns)
        if split:
            known = (self.among, self.log_sum_exp, self.uniform, self.slope)
            self.saved.gradients(*known, first, out[:, :split])
        if split < columns:
            self._computed_again(first + split, columns - split, out[:, split:])
        with_spare = out.as_strided((len(out), columns + 1), out.stride())
        inside = (self.local >= first) & (self.local < first + columns)
        with_spare.scatter_(1, (self.local - first).where(inside, columns), self.on_chosen.to(out.dtype))

    def _computed_again(self, first: int, columns: int, out: Tensor) -> None:
        config, device, tokens = config_for(self.rows.device), self.rows.device, len(self.rows)
        tile = config.gradient
        tiles = triton.cdiv(tokens, tile.rows) * triton.cdiv(columns, tile.columns)
        launch(
            logit_gradients,
            (programs(device, tiles),),
            device,
            hidden=row_blocks(tma_operand(self.rows), tile),
            weight=column_blocks(tma_operand(self.weight), tile),
            gradients=TensorDescriptor.from_tensor(out, [tile.rows, tile.columns]),
            scale_ptr=self.scale,
            log_sum_exp_ptr=self.log_sum_exp,
            uniform_ptr=self.uniform,
            slope_ptr=self.uniform if self.slope is None else self.slope,
            tokens=tokens,
            first=first,
            columns=columns,
            width=self.rows.shape[1],
            BM=tile.rows,
            BN=tile.columns,
            BK=tile.depth(self.rows.element_size()),
            BAND=tile.band,
            ENTROPY=self.slope is not None,
            warps=tile.warps,
            stages=tile.stages,
        )
