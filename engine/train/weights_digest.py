"""A digest of the weights, 64 hexadecimal digits: the same under any layout, different after any update."""

import hashlib
from collections import Counter
from collections.abc import Iterator

import torch
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor, apply_factories, is_main_replica

from cascade_rl.engine.backend.ranks import from_all
from cascade_rl.engine.models.conversion import of_adapter
from cascade_rl.engine.train.trainer import Trainer

WORDS = {4: torch.int32, 2: torch.int16}


def weights_digest(trainer: Trainer) -> str:
    """Hash of the sum of the bits of each tensor that a checkpoint holds, each number counted on one rank. Collective.

    It distinguishes two updates, but not two orders of the same numbers.
    """
    return _digest(_tensors(trainer))


def base_digest(trainer: Trainer) -> str:
    """That of the weights under the trainer's adapters, without these. Collective."""
    assert trainer.lora
    with trainer.lora.base.in_place():
        return _digest(_tensors(trainer, adapters=False))


def _digest(tensors: Iterator[tuple[str, torch.Tensor]]) -> str:
    parts = [(name, tensor.view(WORDS[tensor.element_size()]).sum(dtype=torch.int64)) for name, tensor in tensors]
    values = torch.stack([value for _, value in parts]).tolist() if parts else []  # one wait for the device
    own = Counter[str]()
    for (name, _), value in zip(parts, values, strict=True):
        own[name] += value
    total = Counter[str]()
    for part in from_all(own):
        for name, value in part.items():
            total[name] += value
    return hashlib.sha256(repr(sorted(total.items())).encode()).hexdigest()


def _tensors(trainer: Trainer, *, adapters: bool = True) -> Iterator[tuple[str, torch.Tensor]]:
    """The parts that count on this rank: name of the whole tensor, and this rank's part of it."""
    group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    state = trainer.module.sharded_state_dict(metadata={"dp_cp_group": group, "singleton_local_shards": False})
    state = {name: part for name, part in state.items() if adapters or not of_adapter(name)}
    apply_factories(state)
    for shard in nested_values(state):
        if isinstance(shard, ShardedTensor) and is_main_replica(shard.replica_id):
            yield shard.key, shard.data.detach().contiguous()
