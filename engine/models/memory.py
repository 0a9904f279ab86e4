"""Bytes that one rank allocates before the first token: weights, gradients and optimizer state. Pure numbers."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from cascade_rl.engine.models.name_map import Place, Shard

FLOAT32 = 4


@dataclass(frozen=True)
class StateBytes:
    """Bytes of one rank.

    weights    in the dtype of the model, router biases in float32
    gradients  one float32 buffer
    optimizer  Adam's two float32 moments, and a float32 copy of weights in another dtype; sharded over the data
               parallel ranks (for experts, over the expert data parallel ranks)
    """

    weights: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer


def state_bytes(shards: Iterable[Shard], place: Place, itemsize: int) -> StateBytes:
    """For the rank at `place`, which holds `shards`. `itemsize` is the bytes of a weight, 2 for bfloat16.

    Megatron pads its buffers to a multiple of the ranks that share them. This is not counted: a few hundred bytes.
    """
    dense = experts = biases = 0
    for shard in shards:
        numbers = math.prod(shard.shape)
        if shard.parameter.float32:
            biases += numbers
        elif shard.parameter.expert is None:
            dense += numbers
        else:
            experts += numbers
    per_number = 2 * FLOAT32 + (FLOAT32 if itemsize < FLOAT32 else 0)
    shared = math.ceil(dense / place.data.size) + math.ceil(experts / place.expert_data.size)
    return StateBytes(
        weights=itemsize * (dense + experts) + FLOAT32 * biases,
        gradients=FLOAT32 * (dense + experts),
        optimizer=per_number * shared,
    )
