"""What one rank allocates before the first token: weights, gradients and optimizer state, in bytes; pure numbers."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from cascade_rl.engine.models.name_map import Place, Shard

FLOAT32 = 4


@dataclass(frozen=True)
class StateBytes:
    """Of one rank.

    weights    in the dtype of the model, router biases in float32
    gradients  one float32 buffer
    optimizer  Adam's two float32 moments, and float32 weights where the model's are not; shared by the data parallel
               ranks (those of experts by the expert data parallel ones)
    """

    weights: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer


def state_bytes(shards: Iterable[Shard], place: Place, itemsize: int) -> StateBytes:
    """Of the rank at `place`, whose shards these are; `itemsize` is 2 for bfloat16.

    Megatron pads its buffers to a multiple of the ranks that share them, which is not counted: some hundred bytes.
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
