"""The group of a run's refits: trainer ranks and workers meet at a store, and each computes the same plan."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import Store

from cascade_rl.engine.backend.wire import whereabouts
from cascade_rl.engine.core.settings import ParallelConfig
from cascade_rl.engine.models.hf_config import HfConfig
from cascade_rl.engine.models.places import place_of
from cascade_rl.engine.refit.plan import BUCKET_BYTES, Member, Plan, RefitError, make_plan
from cascade_rl.engine.refit.transport import Group, Receiver, Sender, get, put
from cascade_rl.engine.refit.vllm_map import WorkerPlace, worker_shards


@dataclass(frozen=True)
class Terms:
    """What rank 0 tells all others.

    hf, parallel  the model, and how the trainer splits it
    trainers      number of trainer ranks, which come first; the `workers` of all engines come after them
    seconds       timeout for a silent rank
    """

    hf: HfConfig
    parallel: ParallelConfig
    trainers: int
    workers: int
    bucket_bytes: int = BUCKET_BYTES
    seconds: float = 600.0


@dataclass(frozen=True)
class _Entry:
    """What each rank tells the others."""

    card: str
    node: str
    place: WorkerPlace | None = None
    dtypes: Mapping[str, torch.dtype] | None = None


def join_as_trainer(
    store: Store, rank: int, terms: Terms, tensors: Mapping[str, Tensor], device: torch.device
) -> Sender:
    """Called by every trainer rank while every worker calls `join_as_worker`. `tensors` are those of `Sender`."""
    if rank == 0:
        put(store, "terms", terms)
    group, plan, dtypes = _meet(store, rank, terms, _Entry(*whereabouts(device)), device)
    return Sender(group, plan, tensors, dtypes)


def join_as_worker(
    store: Store, rank: int, place: WorkerPlace, found: Mapping[str, Tensor], device: torch.device
) -> Receiver:
    """`found` are the worker's parameters by name, in the shapes in which vLLM loads them.

    Raises RefitError if a parameter is not in the map or has another shape there; it names up to eight.
    """
    terms = get(store, "terms")
    try:
        _check(terms.hf, place, found)
    except RefitError as objection:
        put(store, f"entry/{rank}", objection)
        raise
    dtypes = {name: tensor.dtype for name, tensor in found.items()}
    group, plan, _ = _meet(store, rank, terms, _Entry(*whereabouts(device), place, dtypes), device)
    return Receiver(group, plan, dtypes)


def _meet(
    store: Store, rank: int, terms: Terms, entry: _Entry, device: torch.device
) -> tuple[Group, Plan, Mapping[str, torch.dtype]]:
    put(store, f"entry/{rank}", entry)
    count = terms.trainers + terms.workers
    store.wait([f"entry/{member}" for member in range(count)], timedelta(seconds=terms.seconds))
    entries: list[Any] = [get(store, f"entry/{member}") for member in range(count)]
    for entry in entries:
        if isinstance(entry, RefitError):
            raise entry
    trainers = [
        Member(place_of(number, terms.trainers, terms.parallel), entry.card, entry.node)
        for number, entry in enumerate(entries[: terms.trainers])
    ]
    workers = [Member(entry.place, entry.card, entry.node) for entry in entries[terms.trainers :]]
    dtypes = entries[-1].dtypes
    plan = make_plan(terms.hf, trainers, workers, lambda name: dtypes[name].itemsize, terms.bucket_bytes)
    return Group(store, rank, terms.trainers, terms.workers, device, terms.seconds), plan, dtypes


def _check(hf: HfConfig, place: WorkerPlace, found: Mapping[str, Tensor]) -> None:
    wanted = {shard.name: shard.shape for shard in worker_shards(hf, place)}
    shapes = {name: tuple(tensor.shape) for name, tensor in found.items()}
    if wrong := sorted(dict(wanted.items() ^ shapes.items())):
        told = "; ".join(f"{n} (map {wanted.get(n, 'none')}, vLLM {shapes.get(n, 'none')})" for n in wrong[:8])
        raise RefitError(
            f"expected vLLM's parameters to be those of the map, found {len(wrong)} that are not: {told}: a refit "
            "would leave them as they are"
        )
