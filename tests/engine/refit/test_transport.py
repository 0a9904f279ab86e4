"""Plans carried out by real ranks over gloo: the matrix of layouts, what the wire carries, and injected faults."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch.distributed import HashStore, PrefixStore, Store, TCPStore

from cascade_rl.engine.cluster.node import ThisNode
from cascade_rl.engine.cluster.store import get, put
from cascade_rl.engine.core.settings import Check, ParallelConfig, RolloutConfig
from cascade_rl.engine.models import family_of
from cascade_rl.engine.refit import group as refit_group
from cascade_rl.engine.refit import transport
from cascade_rl.engine.refit.group import Terms, join_as_trainer, join_as_worker
from cascade_rl.engine.refit.plan import Bucket, Plan, RefitError, Transfer, make_plan
from cascade_rl.engine.refit.transport import HEADER_WORDS, Group, Receiver, Sender
from cascade_rl.engine.refit.verdicts import Verdicts
from cascade_rl.engine.refit.vllm_map import WHOLE, WorkerPlace, worker_shards
from cascade_rl.engine.rollout.seats import seats
from tests.engine.refit.refit_layouts import MODELS, NEMOTRON, PAIRS, Pair, fitting, hf_numbers, laid_out
from tests.engine.refit.strict_nccl import StrictNccl
from tests.gloo import run_ranks

BUCKET_BYTES = 4000
SECONDS = 240.0
FAULT_SECONDS = 5.0
CPU = torch.device("cpu")


@dataclass(frozen=True)
class NamedNode(ThisNode):
    name: str = ""


class Parameters:
    """A worker's parameters: tensors that are kept, and the names that are complete."""

    def __init__(self, hf: dict, pair: Pair, target: int, dtypes: dict[str, torch.dtype]):
        shards = worker_shards(hf, pair.workers()[target].place)
        self.tensors = {shard.name: torch.zeros(shard.shape, dtype=dtypes[shard.name]) for shard in shards}
        self.complete = list[str]()

    def tensor(self, parameter: str) -> torch.Tensor:
        return self.tensors[parameter]

    def filled(self, parameter: str) -> None:
        self.complete.append(parameter)


@dataclass
class Refitted:
    """What a rank found: the bytes it sent, or the parameters it holds."""

    sent: dict[str, int]
    tensors: dict[str, torch.Tensor]
    complete: list[str]


def dtypes_of(pair: Pair, hf: dict, dtype: torch.dtype) -> dict[str, torch.dtype]:
    shards = worker_shards(hf, pair.workers()[0].place)
    wide = (".A", "e_score_correction_bias")
    return {shard.name: torch.float32 if shard.name.endswith(wide) else dtype for shard in shards}


def planned(pair: Pair, hf: dict, dtype: torch.dtype) -> Plan:
    dtypes = dtypes_of(pair, hf, dtype)
    return make_plan(hf, pair.trainers(), pair.workers(), lambda name: dtypes[name].itemsize, BUCKET_BYTES)


def shards_of(rank: int, pair: Pair, hf: dict, trained: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """In the dtype in which the trainer computes; the biases of routers are float32 in any."""
    numbers, tensors = hf_numbers(hf), {}
    for shard in family_of(hf).name_map(hf).shards(pair.trainers()[rank].place):
        dtype = torch.float32 if shard.parameter.float32 else trained
        tensors[shard.name] = torch.from_numpy(laid_out(shard.shape, shard.blocks, numbers)).to(dtype)
    return tensors


def group_of(store: Store, rank: int, trainers: int, workers: int, seconds: float) -> Group:
    """A job of one neighbourhood."""
    verdicts = Verdicts(store, range(workers))
    return Group(store, rank, range(trainers), range(workers), verdicts, CPU, seconds)


def refitted(
    store: PrefixStore,
    rank: int,
    pair: Pair,
    hf: dict,
    dtype: torch.dtype,
    checks: tuple[Check, ...],
    trained: torch.dtype = torch.float32,
) -> Refitted:
    """One refit for each of `checks`, the numbers half as large each time."""
    plan, dtypes = planned(pair, hf, dtype), dtypes_of(pair, hf, dtype)
    count = len(pair.workers())
    group = group_of(store, rank, pair.ranks, count, SECONDS)
    if rank < pair.ranks:
        tensors = shards_of(rank, pair, hf, trained)
        sender = Sender(group, plan, tensors, dtypes)
        for version, check in enumerate(checks):
            sender.send(version, check)
            for tensor in tensors.values():
                tensor.mul_(0.5)
        return Refitted(dict(group.sent), {}, [])
    parameters = Parameters(hf, pair, rank - pair.ranks, dtypes)
    receiver = Receiver(group, plan, dtypes)
    for version in range(len(checks)):
        receiver.receive(version, parameters, checks[version])
    return Refitted(dict(group.sent), parameters.tensors, parameters.complete)


KEPT = list[TCPStore]()  # a rank may still ask when rank 0, whose store it is, has returned


def store_of(rank: int) -> TCPStore:
    KEPT.append(TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=rank == 0, wait_for_workers=False))
    return KEPT[-1]


def ranks_of(pair: Pair) -> int:
    return pair.ranks + len(pair.workers())


def all_pairs(family: str) -> list[Refitted | None]:
    """On each of eight ranks, what it did in every pair."""
    rank, hf = int(os.environ["RANK"]), MODELS[family]
    store, found = store_of(rank), list[Refitted | None]()
    for number, pair in enumerate(PAIRS):
        takes_part = rank < ranks_of(pair)
        own = PrefixStore(str(number), store)
        fit = fitting(pair, hf)
        found.append(refitted(own, rank, fit, hf, torch.float32, ("none",)) if takes_part else None)
    return found


@pytest.fixture(scope="module")
def matrix() -> dict[str, list[list[Refitted | None]]]:
    return {family: run_ranks(max(map(ranks_of, PAIRS)), all_pairs, family) for family in MODELS}


def wanted(
    hf: dict, pair: Pair, target: int, scale: float, trained: torch.dtype = torch.float32
) -> dict[str, torch.Tensor]:
    numbers = {name: scale * tensor for name, tensor in hf_numbers(hf).items()}
    for name in (name for name in numbers if not name.endswith("correction_bias")):
        numbers[name] = torch.from_numpy(numbers[name]).to(trained).float().numpy()
    tensors = {}
    for shard in worker_shards(hf, pair.workers()[target].place):
        tensor = torch.from_numpy(np.nan_to_num(laid_out(shard.shape, shard.blocks, numbers)))
        tensors[shard.name] = -tensor.exp() if shard.minus_exp else tensor
    return tensors


@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize("number", range(len(PAIRS)), ids=[pair.name for pair in PAIRS])
def test_workers_hold_the_trainers_weights(number: int, family: str, matrix: dict) -> None:
    hf, ranks = MODELS[family], [found[number] for found in matrix[family]]
    pair = fitting(PAIRS[number], hf)
    for target in range(len(pair.workers())):
        found = ranks[pair.ranks + target]
        expected = wanted(hf, pair, target, 1.0)
        assert sorted(found.complete) == sorted(expected)
        for name, tensor in expected.items():
            assert torch.equal(found.tensors[name], tensor), name
    plan = planned(pair, hf, torch.float32)
    assert sum(rank.sent.get("payload", 0) for rank in ranks if rank) == plan.lower_bound
    headers = sum(len(buckets) for buckets in plan.rounds) + len({(b.source, b.target) for r in plan.rounds for b in r})
    acknowledged = sum(bucket.local for buckets in plan.rounds for bucket in buckets)
    assert sum(rank.sent.get("headers", 0) for rank in ranks if rank) == (headers + acknowledged) * HEADER_WORDS * 8


def all_pairs_over_nccl(family: str) -> list[Refitted | None]:
    """`all_pairs`, by the rules of NCCL."""
    hf, found = MODELS[family], list[Refitted | None]()
    rank = int(os.environ["RANK"])
    store = store_of(rank)
    for number, pair in enumerate(PAIRS):
        cards = [member.card for member in (*pair.trainers(), *pair.workers())]

        def strict(store: PrefixStore, rank: int, size: int, _: object, timeout: timedelta) -> StrictNccl:
            return StrictNccl(cards, store, rank, size, timeout)  # noqa: B023

        transport.payload_group = strict
        own, fit = PrefixStore(str(number), store), fitting(pair, hf)
        takes_part = rank < ranks_of(pair)
        found.append(refitted(own, rank, fit, hf, torch.float32, ("none",)) if takes_part else None)
    return found


@pytest.mark.parametrize("family", MODELS)
def test_every_pair_keeps_to_the_rules_of_nccl(family: str, matrix: dict) -> None:
    over_nccl = run_ranks(max(map(ranks_of, PAIRS)), all_pairs_over_nccl, family)
    for strict, loose in zip(over_nccl, matrix[family], strict=True):
        for ours, theirs in zip(strict, loose, strict=True):
            assert (ours is None) == (theirs is None)
            if ours and theirs:
                assert ours.sent == theirs.sent
                assert ours.tensors.keys() == theirs.tensors.keys()
                assert all(torch.equal(ours.tensors[name], theirs.tensors[name]) for name in ours.tensors)


@dataclass(frozen=True)
class Told:
    """The cards of a group's ranks, as each tells the others."""

    store: Store

    def __getitem__(self, rank: int) -> str:
        return get(self.store, f"card {rank}")


def with_engines_apart(pair: Pair, ranks: list[int]) -> tuple[bool, int]:
    """Nodes with so many ranks each; the engines at their `seats`. Whether a rank has what it should, and what it sent,
    by the rules of NCCL, in the groups in which they meet."""
    own, store = int(os.environ["RANK"]), store_of(int(os.environ["RANK"]))
    nodes = [NamedNode(count, f"node {number}") for number, count in enumerate(ranks)]
    rollout = RolloutConfig(engines=pair.engines, tensor=pair.tensor, placement="disaggregated")
    places = [(node.name, card) for node in nodes for card in range(node.ranks)]
    places += [(seat.node.name, card) for seat in seats(rollout, nodes) for card in seat.cards]
    node, card = places[own][0], f"{places[own][0]} card {places[own][1]}"

    def strict(store: PrefixStore, rank: int, size: int, _: object, timeout: timedelta) -> StrictNccl:
        put(store, f"card {rank}", card)
        return StrictNccl(Told(store), store, rank, size, timeout)

    transport.payload_group = strict
    with mock.patch.object(refit_group, "whereabouts", lambda _: (card, node)):
        if own < pair.ranks:
            terms = Terms(NEMOTRON, pair.parallel, pair.ranks, len(pair.workers()), seconds=SECONDS)
            sender = join_as_trainer(store, own, terms, shards_of(own, pair, NEMOTRON), CPU)
            sender.send(0)
            return True, sender.group.sent["payload"]
        target = own - pair.ranks
        found = Parameters(NEMOTRON, pair, target, dtypes_of(pair, NEMOTRON, torch.float32))
        join_as_worker(store, own, pair.workers()[target].place, found.tensors, CPU).receive(0, found)
    expected = wanted(NEMOTRON, pair, target, 1.0)
    return all(torch.equal(found.tensors[name], tensor) for name, tensor in expected.items()), 0


@pytest.mark.parametrize(
    ("pair", "ranks"),
    [
        (Pair("beside two ranks", ParallelConfig(expert=2), 2, tensor=2), [2]),
        (Pair("whole nodes", ParallelConfig(expert=2), 4, tensor=2, engines=2), [2, 2, 0, 0]),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_engines_with_cards_of_their_own_get_their_weights_over_nccl(pair: Pair, ranks: list[int]) -> None:
    """Two on whole nodes are refitted by a copy of the model each."""
    found = run_ranks(ranks_of(pair), with_engines_apart, pair, ranks)
    assert all(holds for holds, _ in found)
    assert sum(sent for _, sent in found) == planned(pair, NEMOTRON, torch.float32).lower_bound
    assert len({sent for _, sent in found[: pair.ranks : 2]}) == 1


def on_one_card() -> str:
    """Of two ranks on one card, which a plan would not let use the wire."""
    rank = int(os.environ["RANK"])
    group = StrictNccl(["a", "a"], PrefixStore("", store_of(rank)), rank, 2, timedelta(seconds=SECONDS))
    with pytest.raises(RuntimeError) as error:
        group.send([torch.zeros(1)], 1 - rank, 1)
    return str(error.value)


def test_two_ranks_of_one_card_have_no_communicator() -> None:
    assert "Duplicate GPU" in run_ranks(2, on_one_card)[0]


CHECKED = PAIRS[14]  # trainers and workers share some cards, experts are cut


def twice(trained: torch.dtype, dtype: torch.dtype) -> Refitted:
    rank = int(os.environ["RANK"])
    store = PrefixStore("", store_of(rank))
    return refitted(store, rank, CHECKED, NEMOTRON, dtype, ("none", "sums", "digests"), trained)


SIDES = [(torch.float32, torch.float32), (torch.float32, torch.bfloat16), (torch.bfloat16, torch.bfloat16)]


@pytest.mark.parametrize(("trained", "dtype"), SIDES, ids=["float32", "float32 to bfloat16", "bfloat16"])
def test_later_refits_bring_new_weights_cast_by_the_sender_and_checked(
    trained: torch.dtype, dtype: torch.dtype
) -> None:
    """A trainer in bfloat16 and its engine hold the same bits, and A, which the engine keeps in float32, comes from the
    trainer's bits of A_log."""
    found = run_ranks(ranks_of(CHECKED), twice, trained, dtype)
    for target in range(4):
        for name, tensor in wanted(NEMOTRON, CHECKED, target, 0.25, trained).items():
            refit = found[CHECKED.ranks + target].tensors[name]
            assert torch.equal(refit, tensor.to(refit.dtype)), name
    plan = planned(CHECKED, NEMOTRON, dtype)
    slices = sum(len(b.transfers) for buckets in plan.rounds for b in buckets if not b.local)
    assert sum(rank.sent["payload"] for rank in found[:4]) == 3 * plan.lower_bound + slices * (8 + 32)


TWO_NODES = Pair("DP2 to two engines", ParallelConfig(), 2, engines=2)


def by_neighbourhood() -> list[str]:
    """Rank 0 and worker 0 are on one node, rank 1 and worker 1 on another. Then rank 1 sends a wrong version."""
    rank, place = int(os.environ["RANK"]), TWO_NODES.workers()[0].place
    store, dtypes = store_of(rank), dtypes_of(TWO_NODES, NEMOTRON, torch.float32)
    with mock.patch.object(refit_group, "whereabouts", lambda _: (f"card {rank}", f"node {rank % 2}")):
        if rank < TWO_NODES.ranks:
            terms = Terms(NEMOTRON, ParallelConfig(), 2, 2, seconds=FAULT_SECONDS)
            member: Any = join_as_trainer(store, rank, terms, shards_of(rank, TWO_NODES, NEMOTRON), CPU)
        else:
            found = Parameters(NEMOTRON, TWO_NODES, 0, dtypes)
            member = join_as_worker(store, rank, place, found.tensors, CPU)
    neighbours = [*member.group.trainers, *member.group.workers]
    if rank < TWO_NODES.ranks:
        member.send(1)
        held = True
    else:
        member.receive(1, found)
        held = all(torch.equal(found.tensors[name], own) for name, own in wanted(NEMOTRON, TWO_NODES, 0, 1.0).items())
    with pytest.raises(RefitError) as error:
        member.send(2 + rank) if rank < TWO_NODES.ranks else member.receive(2, found)
        raise RefitError("none")
    return [str(neighbours), str(held), str(error.value)]


def test_neighbours_refit_alone_and_a_fault_anywhere_stops_every_trainer_rank() -> None:
    told = run_ranks(4, by_neighbourhood)
    assert [neighbours for neighbours, _, _ in told] == ["[0, 0]", "[1, 1]"] * 2
    assert [held for _, held, _ in told] == ["True"] * 4
    fault = "trainer rank 1 sends weight version 3, expected 2: it does not take part in the same refit"
    assert [message for _, _, message in told] == [f"worker 1: {fault}"] * 2 + ["none", fault]


FAULTY = Pair("EP2 to TP2", ParallelConfig(expert=2), 2, tensor=2)
IN_PLACE = replace(FAULTY, colocated=True)


def stale_version(sender: Sender) -> None:
    sender.send(6, "sums")


def dropped_bucket(sender: Sender) -> None:
    number = next(number for number, buckets in enumerate(sender._rounds) if number and buckets)
    sender._rounds[number] = sender._rounds[number][1:]
    sender.send(7, "sums")


def dropped_last_bucket(sender: Sender) -> None:
    number = max(number for number, buckets in enumerate(sender._rounds) if buckets)
    sender._rounds[number] = []
    sender.send(7, "none")


def swapped_expert(sender: Sender) -> None:
    def swapped(transfer: Transfer) -> Transfer:
        shard = {"weight0": "weight1", "weight1": "weight0"}.get(transfer.shard[-7:])
        return transfer._replace(shard=transfer.shard[:-7] + shard) if shard else transfer

    pack = sender._pack

    def pack_swapped(bucket: Bucket, packed: torch.Tensor, check: Check) -> None:
        pack(bucket, packed, check)
        wrong = replace(bucket, transfers=tuple(map(swapped, bucket.transfers)))
        pack(wrong, packed[: bucket.bytes], "none")

    sender._pack = pack_swapped  # type: ignore[method-assign]
    sender.send(7, "sums")


def corrupted_byte(check: Check) -> Callable[[Sender], None]:
    def corrupt(sender: Sender) -> None:
        pack = sender._pack

        def pack_and_flip(bucket: Bucket, packed: torch.Tensor, check: Check) -> None:
            pack(bucket, packed, check)
            start = 0
            for transfer in bucket.transfers:
                if transfer.parameter == "model.layers.0.mixer.D":
                    packed[start + 2] ^= 1
                start += transfer.bytes

        sender._pack = pack_and_flip  # type: ignore[method-assign]
        sender.send(7, check)

    return corrupt


DIFFER = "of trainer rank 1 and of this worker differ for"
FAULTS: dict[str, tuple[Callable[[Sender], None], Check, str]] = {
    "stale version": (stale_version, "sums", r"trainer rank 1 sends weight version 6, expected 7"),
    "dropped bucket": (dropped_bucket, "sums", r"trainer rank 1 left out a bucket with model\."),
    "dropped last bucket": (dropped_last_bucket, "none", r"trainer rank 1 left out a bucket with (model|lm_head)\."),
    "swapped expert": (swapped_expert, "sums", rf"the sums {DIFFER} .*w(13|2)_weight\[[23]:[34], 0:"),
    "corrupted byte": (corrupted_byte("sums"), "sums", rf"the sums {DIFFER} model\.layers\.0\.mixer\.D\[0:4\]: these"),
    "one of all": (corrupted_byte("digests"), "digests", rf"the digests {DIFFER} model\.layers\.0\.mixer\.D\[0:4\]: "),
}


def with_fault(store: PrefixStore, rank: int, pair: Pair, name: str) -> str:
    # A rank that the last fault kept waiting has as long as it needs to come to this one.
    store.set(f"here/{rank}", "")
    store.wait([f"here/{other}" for other in range(pair.ranks + len(pair.workers()))], timedelta(seconds=SECONDS))
    fault, check, _ = FAULTS[name]
    plan, dtypes = planned(pair, NEMOTRON, torch.float32), dtypes_of(pair, NEMOTRON, torch.float32)
    group = group_of(store, rank, pair.ranks, len(pair.workers()), FAULT_SECONDS)
    with pytest.raises(RefitError) as error:
        if rank < pair.ranks:
            sender = Sender(group, plan, shards_of(rank, pair, NEMOTRON), dtypes)
            fault(sender) if rank == 1 else sender.send(7, check)
        else:
            Receiver(group, plan, dtypes).receive(7, Parameters(NEMOTRON, pair, rank - pair.ranks, dtypes), check)
            raise RefitError("none: nothing is wrong here")
    return str(error.value)


def with_faults() -> dict[str, list[str]]:
    rank = int(os.environ["RANK"])
    store = store_of(rank)
    return {
        name: [with_fault(PrefixStore(f"{name}/{pair}", store), rank, pair, name) for pair in (FAULTY, IN_PLACE)]
        for name in FAULTS
    }


@pytest.fixture(scope="module")
def faults() -> list[dict[str, list[str]]]:
    return run_ranks(4, with_faults)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_stops_every_trainer_rank_and_is_named(name: str, faults: list[dict[str, list[str]]]) -> None:
    for rank in (0, 1):
        for message in faults[rank][name]:
            assert re.search(r"worker \d: " + FAULTS[name][2], message), message


def test_a_buffer_that_a_trainer_rank_lacks_is_named() -> None:
    [pair] = [pair for pair in PAIRS if pair.name == "TP1 to TP1"]
    tensors = shards_of(0, pair, NEMOTRON)
    del tensors["decoder.layers.1.mlp.router.expert_bias"]
    group = group_of(HashStore(), 0, 1, 0, SECONDS)
    with pytest.raises(RefitError, match=r"rank 0 has no decoder\.layers\.1\.mlp\.router\.expert_bias, which model"):
        Sender(group, planned(pair, NEMOTRON, torch.float32), tensors, {})


def test_a_worker_that_is_not_as_the_map_says_stops_both_sides_before_anything_is_sent() -> None:
    """vLLM's backends that pad or rename weights would otherwise keep their old values."""
    store, terms = HashStore(), Terms(NEMOTRON, ParallelConfig(), trainers=1, workers=1, seconds=5.0)
    put(store, "terms", terms)
    place = WorkerPlace(WHOLE, WHOLE)
    found = {shard.name: torch.empty(shard.shape) for shard in worker_shards(NEMOTRON, place)}
    found["model.norm_f.weight"] = torch.empty(3)
    message = r"found 1 that are not: model\.norm_f\.weight \(map \(\d+,\), vLLM \(3,\)\)"
    with pytest.raises(RefitError, match=message):
        join_as_worker(store, 1, place, found, CPU)
    with pytest.raises(RefitError, match=message):
        join_as_trainer(store, 0, terms, {}, CPU)
