"""Megatron distributed checkpoints of a trainer: model, buffers and optimizer, each rank writing its shards.

They load under any layout but EP = 1 <-> EP > 1 (facts/megatron_cpu.md, section 6). Who calls makes a
checkpoint complete or absent (`StageFolder.commit_checkpoint`); random state needs no place here, since every
seed is a function of the configuration and the step.
"""

from pathlib import Path
from typing import Any

import torch
from megatron.core import dist_checkpointing, parallel_state

from cascade_rl.engine.trainer import Trainer


def save(trainer: Trainer, folder: Path) -> None:
    """Writes into `folder`, which exists and is empty. Collective."""
    dist_checkpointing.save(_sharded(trainer, loading=False), str(folder))


def load(trainer: Trainer, folder: Path) -> None:
    """Restores what `save` wrote. Collective."""
    _prime_adam(trainer.optimizer)
    state = dist_checkpointing.load(_sharded(trainer, loading=True), str(folder))
    trainer.module.load_state_dict(state["model"])
    trainer.optimizer.load_state_dict(state["optimizer"])
    _own_steps(trainer.optimizer)


def _sharded(trainer: Trainer, *, loading: bool) -> dict[str, Any]:
    metadata = {
        "distrib_optim_sharding_type": "fully_reshardable",
        "dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True),
        "singleton_local_shards": False,
        "chained_optim_avoid_prefix": True,
    }
    model = trainer.module.sharded_state_dict(metadata=metadata)
    optimizer = trainer.optimizer.sharded_state_dict(model, is_loading=loading, metadata=metadata)
    return {"model": model, "optimizer": optimizer}


def _prime_adam(optimizer: Any) -> None:
    """Megatron restores the state of an optimizer that has one; a new one has none before its first step."""
    for part in _parts(optimizer):
        for group in part.param_groups:
            for parameter in group["params"]:
                zeros = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
                part.state[parameter] = {"step": torch.tensor(0.0), **zeros}


def _own_steps(optimizer: Any) -> None:
    """Megatron restores one step tensor for all parameters of a torch Adam, which counts each of them."""
    for part in _parts(optimizer):
        for state in part.state.values():
            state["step"] = state["step"].clone()


def _parts(optimizer: Any) -> list[torch.optim.Optimizer]:
    return [part.optimizer for part in getattr(optimizer, "chained_optimizers", [optimizer])]
