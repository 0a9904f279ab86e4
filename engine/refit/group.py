"""The groups of a run's refits: trainer ranks and workers meet at a store, and neighbours compute the same plan.

Each member writes one entry. Rank 0 reads them all, and answers each member with its neighbourhood. So a meeting is a
few operations of the store for each member, however many they are.
"""

import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import PrefixStore, Store

from cascade_rl.engine.backend.wire import whereabouts
from cascade_rl.engine.cluster.store import get, put
from cascade_rl.engine.core.settings import LoraConfig, ParallelConfig
from cascade_rl.engine.models.hf_config import HfConfig
from cascade_rl.engine.models.name_map import Place
from cascade_rl.engine.models.places import place_of
from cascade_rl.engine.refit.factors import moved_shards
from cascade_rl.engine.refit.neighbourhoods import neighbourhoods
from cascade_rl.engine.refit.plan import BUCKET_BYTES, Concerns, Member, Plan, RefitError, make_plan
from cascade_rl.engine.refit.transport import Group, Receiver, Sender
from cascade_rl.engine.refit.verdicts import Verdicts
from cascade_rl.engine.refit.vllm_map import WorkerPlace

BASE = "base"


@dataclass(frozen=True)
class Terms:
    """What rank 0 tells all others.

    hf, parallel  the model, and how the trainer splits it
    trainers      number of trainer ranks, which come first; the `workers` come after them, engine by engine
    seconds       timeout for a silent rank
    lora          the adapters whose factors are sent. Members then meet a second time, at `BASE` of the same store, for
                  the weights under them. None: the weights are sent
    """

    hf: HfConfig
    parallel: ParallelConfig
    trainers: int
    workers: int
    bucket_bytes: int = BUCKET_BYTES
    seconds: float = 600.0
    lora: LoraConfig | None = None


@dataclass(frozen=True)
class _Entry:
    """What each rank tells rank 0; `dtypes`, which are the same on all workers, the last worker alone."""

    card: str
    node: str
    place: WorkerPlace | None = None
    dtypes: Mapping[str, torch.dtype] | None = None


@dataclass(frozen=True)
class _Neighbours:
    """What rank 0 answers: the members of a neighbourhood by their numbers in the job, and the dtypes."""

    name: str
    trainers: Mapping[int, Member[Place]]
    workers: Mapping[int, Member[WorkerPlace]]
    dtypes: Mapping[str, torch.dtype]


def join_as_trainer(
    store: Store, rank: int, terms: Terms, tensors: Mapping[str, Tensor], device: torch.device
) -> Sender:
    """Called by every trainer rank while every worker calls `join_as_worker`. `tensors` are those of `Sender`."""
    if rank == 0:
        put(store, "terms", terms)
    near = _meet(store, rank, terms, _Entry(*whereabouts(device)))
    own = list(near.trainers).index(rank)
    plan = _plan(terms, near, lambda source, _: source == own)
    return Sender(_group(store, own, terms, near, device), plan, tensors, near.dtypes)


def join_as_worker(
    store: Store, rank: int, place: WorkerPlace, found: Mapping[str, Tensor], device: torch.device
) -> Receiver:
    """`found` are the worker's parameters by name, in the shapes in which vLLM loads them, or factors of adapters.

    Raises RefitError if a parameter is not in the map or has another shape there; it names up to eight.
    """
    terms = get(store, "terms")
    try:
        _check(terms, place, found)
    except RefitError as objection:
        put(store, f"entry/{rank}", objection)
        raise
    is_last = rank == terms.trainers + terms.workers - 1
    dtypes = {name: tensor.dtype for name, tensor in found.items()} if is_last else None
    near = _meet(store, rank, terms, _Entry(*whereabouts(device), place, dtypes))
    own = list(near.workers).index(rank - terms.trainers)
    plan = _plan(terms, near, lambda _, target: target == own)
    return Receiver(_group(store, len(near.trainers) + own, terms, near, device), plan, near.dtypes)


def _meet(store: Store, rank: int, terms: Terms, entry: _Entry) -> _Neighbours:
    put(store, f"entry/{rank}", entry)
    if rank == 0:
        _answer(store, terms)
    store.wait([f"answer/{rank}"], timedelta(seconds=terms.seconds))
    answer = get(store, f"answer/{rank}")
    if isinstance(answer, RefitError):
        raise answer
    return answer


def _answer(store: Store, terms: Terms) -> None:
    """Rank 0's part of a meeting."""
    members = range(terms.trainers + terms.workers)
    store.wait([f"entry/{member}" for member in members], timedelta(seconds=terms.seconds))
    entries: list[Any] = [get(store, f"entry/{member}") for member in members]
    for entry in entries:
        if isinstance(entry, RefitError):
            return _tell(store, members, entry)
    for near in _neighbours(terms, entries):
        _tell(store, [*near.trainers, *(terms.trainers + worker for worker in near.workers)], near)


def _tell(store: Store, members: Iterable[int], answer: _Neighbours | RefitError) -> None:
    told = pickle.dumps(answer)
    for member in members:
        store.set(f"answer/{member}", told)  # type: ignore[arg-type]


def _neighbours(terms: Terms, entries: Sequence[Any]) -> list[_Neighbours]:
    trainers = [
        Member(place_of(rank, terms.trainers, terms.parallel), entry.card, entry.node)
        for rank, entry in enumerate(entries[: terms.trainers])
    ]
    workers = [Member(entry.place, entry.card, entry.node) for entry in entries[terms.trainers :]]
    return [
        _Neighbours(
            f"neighbourhood {number}",
            {rank: trainers[rank] for rank in near.trainers},
            {worker: workers[worker] for worker in near.workers},
            entries[-1].dtypes,
        )
        for number, near in enumerate(neighbourhoods(trainers, workers))
    ]


def _plan(terms: Terms, near: _Neighbours, concerns: Concerns) -> Plan:
    trainers, workers = list(near.trainers.values()), list(near.workers.values())
    return make_plan(
        terms.hf,
        trainers,
        workers,
        lambda name: near.dtypes[name].itemsize,
        terms.bucket_bytes,
        concerns,
        terms.lora,
    )


def _group(store: Store, own: int, terms: Terms, near: _Neighbours, device: torch.device) -> Group:
    verdicts = Verdicts(store, range(terms.workers))
    return Group(PrefixStore(near.name, store), own, [*near.trainers], [*near.workers], verdicts, device, terms.seconds)


def _check(terms: Terms, place: WorkerPlace, found: Mapping[str, Tensor]) -> None:
    wanted = {shard.name: shard.shape for shard in moved_shards(terms.hf, terms.lora, place)}
    shapes = {name: tuple(tensor.shape) for name, tensor in found.items()}
    if wrong := sorted(dict(wanted.items() ^ shapes.items())):
        told = "; ".join(f"{n} (map {wanted.get(n, 'none')}, vLLM {shapes.get(n, 'none')})" for n in wrong[:8])
        raise RefitError(
            f"expected vLLM's parameters to be those of the map, found {len(wrong)} that are not: {told}: a refit "
            "would leave them as they are"
        )
