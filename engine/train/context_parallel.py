"""A rank's part of a packed micro-batch under context parallelism."""

from dataclasses import replace

from cascade_rl.engine.backend.zigzag import zigzag
from cascade_rl.engine.train.packing import MicroBatch


def shard(batch: MicroBatch, size: int, rank: int) -> MicroBatch:
    """A rank's tokens of a micro-batch. Segments, `cu_seqlens` and `max_seqlen` stay those of the whole batch."""
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
