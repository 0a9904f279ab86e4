"""Megatron distributed checkpoints of a trainer, written in the background and loaded under any layout.

Model and moments are stored by parameter, in the shape of the whole model, so that the next run may have another
layout, also one with EP = 1 instead of more. Megatron's own optimizer state does not allow that: it has one entry per
chained optimizer, of which there is one without expert parallelism and two with it. These entries hold the count of
updates, which is stored once here, and hyper-parameters, which the configuration gives.

With low-rank adapters only these are stored, and a digest of the base that they were trained on.

Random state, data cursor and schedules are not stored: each is a function of the configuration and the step.
"""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from multiprocessing import get_context
from multiprocessing.managers import SyncManager
from pathlib import Path
from typing import Any

import torch
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncCallsQueue

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.parent_death import die_with_parent
from cascade_rl.engine.models.conversion import of_adapter
from cascade_rl.engine.models.hf_config import HfConfig
from cascade_rl.engine.train.optimizer_state import Held, held, put_back, stored
from cascade_rl.engine.train.trainer import Trainer
from cascade_rl.engine.train.weights_digest import base_digest

_NOT_THE_MODEL = {"transformers_version", "dtype", "torch_dtype", "_name_or_path"}


class CheckpointWriter:
    """Writes one checkpoint at a time in a process of its own. All methods are collective."""

    def __init__(self) -> None:
        _share_results()
        self._calls = AsyncCallsQueue()
        self._written: Callable[[], None] = lambda: None

    def start(self, trainer: Trainer, folder: Path, written: Callable[[], None]) -> None:
        """Takes a snapshot of the state, and writes it into `folder`, which must exist and be empty.

        Waits for the previous checkpoint. `written` is called on every rank, from `poll` or `finish`, once all ranks
        have written everything.
        """
        self.finish()
        request = dist_checkpointing.save(
            _sharded(trainer, _held(trainer)) | {"updates": _updates(trainer)},
            str(folder),
            async_sharded_save=True,
            async_strategy="mcore",
            content_metadata={"model": _identity(trainer.hf_config) | _adapted(trainer)},
        )
        self._written = written
        write = request.async_fn and partial(_in_child, request.async_fn)  # None on a rank that writes nothing
        self._calls.schedule_async_request(request._replace(async_fn=write))

    def poll(self) -> None:
        """Completes the checkpoint under way if it is written; does not wait."""
        self._end(blocking=False)

    def finish(self) -> None:
        """Waits for the checkpoint under way, and completes it."""
        self._end(blocking=True)

    def _end(self, *, blocking: bool) -> None:
        if self._calls.maybe_finalize_async_calls(blocking=blocking):
            self._written()


def _share_results() -> None:
    """Starts the process through which a writer reports to its rank what it wrote. Megatron would start one that
    outlives a killed rank for ever."""
    if filesystem_async._results_queue is None:
        manager = SyncManager(ctx=get_context("spawn"))
        manager.start(initializer=die_with_parent)
        filesystem_async._results_queue = manager.Queue()


def _in_child(write: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Ends the writer with its rank: one that outlived its run would write into the folder of the next attempt."""
    die_with_parent()
    return write(*args, **kwargs)


def save(trainer: Trainer, folder: Path) -> None:
    """Writes into `folder`, which must exist and be empty, and waits. Collective."""
    writer = CheckpointWriter()
    writer.start(trainer, folder, lambda: None)
    writer.finish()


def load(trainer: Trainer, folder: Path) -> None:
    """Restores a checkpoint under any layout. Collective. Adapters need the trainer to have the weights of their base.

    Raises UserError if the checkpoint is of another model, or of adapters of another base.
    """
    _check_model(_identity(trainer.hf_config) | _adapted(trainer), folder)
    found = [[one.emptied() for one in part] for part in _held(trainer)]
    state = dist_checkpointing.load(_sharded(trainer, found), str(folder))
    trainer.module.load_state_dict(state["model"], strict=not trainer.lora)
    if trainer.lora:
        trainer.lora.merge()
    for part, numbers in zip(_parts(trainer), found, strict=True):
        put_back(part, numbers)
        _set_updates(part, state["updates"])


def _held(trainer: Trainer) -> list[list[Held]]:
    _prime_adam(trainer)
    return [list(held(part)) for part in _parts(trainer)]


def _sharded(trainer: Trainer, found: list[list[Held]]) -> dict[str, Any]:
    """The state to write or to read, where that of the optimizers is in the memory of `found`."""
    metadata = {
        "dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True),
        "singleton_local_shards": False,
    }
    model = trainer.module.sharded_state_dict(metadata=metadata)
    if trainer.lora:
        model = {name: part for name, part in model.items() if of_adapter(name)}
    return {"model": model, "optimizer": [stored(part, model) for part in found]}


def _identity(hf_config: HfConfig) -> HfConfig:
    return {name: value for name, value in hf_config.items() if name not in _NOT_THE_MODEL}


def _adapted(trainer: Trainer) -> dict[str, Any]:
    """What adapters are of; empty without them. Collective."""
    if not trainer.lora:
        return {}
    return {"lora": asdict(trainer.lora.config), "base of the adapters": base_digest(trainer)}


def _check_model(ours: HfConfig, folder: Path) -> None:
    metadata = dist_checkpointing.load_content_metadata(str(folder))
    if metadata is None:
        raise UserError(f"{folder}: expected a checkpoint of this version of Cascade, found one without its model")
    theirs = metadata["model"]
    differ = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
    if differ:
        found = ", ".join(f"{name} = {theirs.get(name)} (expected {ours.get(name)})" for name in differ)
        raise UserError(f"{folder} is a checkpoint of another model: {found}")


def _prime_adam(trainer: Trainer) -> None:
    """Megatron saves and restores only optimizer state that exists; a new optimizer has none before its first step."""
    fresh = [part.optimizer for part in _parts(trainer) if not part.optimizer.state]
    for optimizer in fresh:
        for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
            zeros = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            optimizer.state[parameter] = {"step": torch.tensor(0.0), **zeros}


def _updates(trainer: Trainer) -> int:
    """Optimizer steps so far: torch's Adam counts them per parameter, Transformer Engine's per group."""
    return int(_parts(trainer)[0].state_dict()["optimizer"]["param_groups"][0]["step"])


def _set_updates(part: Any, updates: int) -> None:
    state = part.state_dict()
    for group in state["optimizer"]["param_groups"]:
        group["step"] = updates
    part.load_state_dict(state)
    for moments in part.optimizer.state.values():  # Megatron gives all parameters one step tensor, Adam updates each
        moments["step"] = moments["step"].clone()


def _parts(trainer: Trainer) -> list[Any]:
    """Megatron's distributed optimizers: one, or with expert parallelism one for the experts and one for the rest."""
    return trainer.optimizer.chained_optimizers
