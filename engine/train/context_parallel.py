"""A rank's part of a packed micro-batch under context parallelism."""

from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor

from cascade_rl.engine.backend.zigzag import zigzag
from cascade_rl.engine.train.packing import MicroBatch


def shard(batch: MicroBatch, size: int, rank: int) -> MicroBatch:
    """A rank's tokens of a micro-batch. Segments, `cu_seqlens` and `max_seqlen` remain those of the whole batch."""
    if size == 1:
        return batch
    held = zigzag(batch.cu_seqlens, size, rank)
    return replace(
        batch,
        input_ids=batch.input_ids[:, held],
        position_ids=batch.position_ids[:, held],
        targets=batch.targets[held],
        loss_mask=batch.loss_mask[held],
        temperature=batch.temperature[held],
        per_token={name: values[held] for name, values in batch.per_token.items()},
        routes=None if batch.routes is None else batch.routes[held],
        kept=None if batch.kept is None else batch.kept[held],
    )


def sequence_means(values: Tensor, batch: MicroBatch, group: dist.ProcessGroup | None) -> Tensor:
    """For each loss token of this rank, the mean of `values` over all loss tokens of the token's sequence.

    values: float [loss tokens] of `batch`, which is the result of `shard`. The result has the same shape. Collective,
    without gradient.
    """
    size = 1 if group is None else group.size()
    lengths = batch.cu_seqlens.diff() // size  # this rank's part of each segment
    counts = torch.stack([mask.sum() for mask in batch.loss_mask.split(lengths.tolist())])
    sums = torch.stack([part.sum() for part in values.split(counts.tolist())])
    totals = torch.stack([sums, counts.to(sums.dtype)])
    if size > 1:
        dist.all_reduce(totals, group=group)
    return (totals[0] / totals[1].clamp_min(1)).repeat_interleave(counts)
