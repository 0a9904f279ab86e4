"""Bytes that low-rank adapters take on one rank, beside its frozen weights. Pure numbers."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from cascade_rl.engine.lora.rules import AdapterShard
from cascade_rl.engine.models.memory import FLOAT32, StateBytes, state_bytes
from cascade_rl.engine.models.name_map import Place


@dataclass(frozen=True)
class AdapterBytes:
    """Bytes of one rank.

    state     of the factors, their gradients and Adam's moments, all float32
    base      the kept copy of the weights that have adapters, in the dtype of the model
    backward  gradients of weights that backward holds at once: those of a module, of which one is also in float32
    """

    state: StateBytes
    base: int
    backward: int


def adapter_bytes(shards: Sequence[AdapterShard], place: Place, itemsize: int) -> AdapterBytes:
    """For the rank at `place`, which holds `shards`. `itemsize` is the bytes of a weight, 2 for bfloat16."""
    modules, weights = Counter[str](), [0]
    for shard in shards:
        weights.append(math.prod(shard.weight.shape))
        modules[shard.weight.name.rpartition(".")[0]] += weights[-1]
    factors = [factor for shard in shards for factor in (shard.a, shard.b)]
    return AdapterBytes(
        state=state_bytes(factors, place, FLOAT32),
        base=itemsize * sum(weights),
        backward=itemsize * max(modules.values(), default=0) + FLOAT32 * max(weights),
    )
