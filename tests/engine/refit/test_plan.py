"""The plan in pure numbers: from the shards of any layout it makes those of any other."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from cascade_rl.engine import models
from cascade_rl.engine.core.settings import ParallelConfig
from cascade_rl.engine.models import family_of
from cascade_rl.engine.models.name_map import Cut
from cascade_rl.engine.models.places import place_of
from cascade_rl.engine.refit import factors
from cascade_rl.engine.refit.plan import Bucket, Concerns, Links, Member, Plan, RefitError, make_plan, wire_seconds
from cascade_rl.engine.refit.vllm_map import WorkerPlace, worker_shards
from tests.engine.refit.refit_layouts import MODELS, NEMOTRON, PAIRS, Pair, fitting, hf_numbers, laid_out

BUCKET_BYTES = 1000
PUBLISHED = Path(models.__file__).parent / "published"


def float32(parameter: str) -> int:
    return 4


def plan_of(pair: Pair, hf: dict) -> Plan:
    return make_plan(hf, pair.trainers(), pair.workers(), float32, BUCKET_BYTES)


def trainer_shards(pair: Pair, hf: dict) -> list[dict[str, np.ndarray]]:
    tensors, name_map = hf_numbers(hf), family_of(hf).name_map(hf)
    return [
        {shard.name: laid_out(shard.shape, shard.blocks, tensors) for shard in name_map.shards(trainer.place)}
        for trainer in pair.trainers()
    ]


def engine_shards(pair: Pair, hf: dict) -> list[dict[str, np.ndarray]]:
    """Before -exp."""
    tensors = hf_numbers(hf)
    return [
        {shard.name: laid_out(shard.shape, shard.blocks, tensors) for shard in worker_shards(hf, worker.place)}
        for worker in pair.workers()
    ]


@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_every_number_arrives_once_and_only_what_the_card_lacks_is_sent(pair: Pair, family: str) -> None:
    hf = MODELS[family]
    pair = fitting(pair, hf)
    plan, sources, expected = plan_of(pair, hf), trainer_shards(pair, hf), engine_shards(pair, hf)
    arrived = [{name: np.full_like(shard, np.nan) for name, shard in worker.items()} for worker in expected]
    transfers = [transfer for buckets in plan.rounds for bucket in buckets for transfer in bucket.transfers]
    for transfer in transfers:
        target = arrived[transfer.target][transfer.parameter][transfer.target_index]
        assert np.isnan(target).all()  # not written before
        assert target.size * 4 == transfer.bytes
        target[...] = sources[transfer.source][transfer.shard][transfer.source_index]
    for found, wanted in zip(arrived, expected, strict=True):
        for name in wanted:
            np.testing.assert_array_equal(found[name], wanted[name], err_msg=name)
    assert plan.wire_bytes() == plan.lower_bound == missing_bytes(pair, hf)


PLANS = json.loads((Path(__file__).parent / "plans.json").read_text())


@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_the_plan_is_that_of_every_rank_for_itself(pair: Pair, family: str) -> None:
    """`plans.json` has a digest of each plan as one loop over all transfers made it."""
    hf = MODELS[family]
    whole = plan_of(fitting(pair, hf), hf)
    assert digest(whole) == PLANS[family][pair.name]
    for rank in range(pair.ranks):
        assert own_plan(pair, hf, lambda source, _: source == rank).sent_by(rank) == whole.sent_by(rank)  # noqa: B023
    for worker in range(len(pair.workers())):
        own = own_plan(pair, hf, lambda _, target: target == worker)  # noqa: B023
        assert own.received_by(worker) == whole.received_by(worker)


def own_plan(pair: Pair, hf: dict, concerns: Concerns) -> Plan:
    pair = fitting(pair, hf)
    return make_plan(hf, pair.trainers(), pair.workers(), float32, BUCKET_BYTES, concerns)


def digest(plan: Plan) -> str:
    plain = [[plain_bucket(bucket) for bucket in buckets] for buckets in plan.rounds]
    return hashlib.sha256(json.dumps([plain, plan.lower_bound]).encode()).hexdigest()[:16]


def plain_bucket(bucket: Bucket) -> list:
    transfers = [
        [t.shard, t.parameter, str(t.source_index), str(t.target_index), t.bytes, t.minus_exp] for t in bucket.transfers
    ]
    return [bucket.source, bucket.target, bucket.local, transfers]


def missing_bytes(pair: Pair, hf: dict) -> int:
    """What the workers hold and no rank on the same card does, counted number by number."""
    missing, name_map, trainers = 0, family_of(hf).name_map(hf), pair.trainers()
    for worker in pair.workers():
        held = {name: np.zeros(tensor.shape, bool) for name, tensor in name_map.hf_tensors().items()}
        for trainer in trainers:
            for shard in name_map.shards(trainer.place) if trainer.card == worker.card else ():
                for block in shard.blocks:
                    held[block.hf_name][block.hf_index] = True
        for shard in worker_shards(hf, worker.place):
            missing += sum(4 * int((~held[block.hf_name][block.hf_index]).sum()) for block in shard.blocks)
    return missing


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_no_rank_sends_or_receives_more_than_a_bucket_in_a_round(pair: Pair) -> None:
    for buckets in plan_of(fitting(pair, NEMOTRON), NEMOTRON).rounds:
        for rank in {bucket.source for bucket in buckets}:
            assert sum(bucket.bytes for bucket in buckets if bucket.source == rank) <= BUCKET_BYTES
        for rank in {bucket.target for bucket in buckets}:
            assert sum(bucket.bytes for bucket in buckets if bucket.target == rank) <= BUCKET_BYTES


def test_replicas_share_the_sending() -> None:
    pair = Pair("", ParallelConfig(), 4, tensor=2)
    sent = [0] * 4
    for buckets in plan_of(pair, NEMOTRON).rounds:
        for bucket in buckets:
            sent[bucket.source] += bucket.bytes
    assert max(sent) - min(sent) <= BUCKET_BYTES


def test_a_number_that_no_rank_holds_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pair, bias = PAIRS[0], "backbone.layers.1.mixer.gate.e_score_correction_bias"
    known = family_of(NEMOTRON)
    whole = known.name_map(NEMOTRON)
    kept = [p for p in whole.parameters if p.rule.parts[0].hf_name != bias]
    part = type(whole)(tuple(kept), whole.layers, whole.experts)
    family = type("Family", (), {"name_map": lambda self, hf: part})()
    monkeypatch.setattr(factors, "family_of", lambda hf: family)
    with pytest.raises(RefitError, match=f"hold all of {bias}, .* found none with 4 numbers of it"):
        plan_of(pair, NEMOTRON)


def test_wire_time_is_that_of_the_slowest_rank_of_each_round() -> None:
    trainers = [Member(place_of(0, 1, ParallelConfig()), "a", "node 0")] * 2
    workers = [Member(WorkerPlace(), card, node) for card, node in (("a", "node 0"), ("b", "node 0"), ("c", "node 1"))]
    transfers = plan_of(PAIRS[0], NEMOTRON).rounds[0][0].transfers[:1]
    count = transfers[0].bytes
    local, near, far = (Bucket(0, target, target == 0, transfers) for target in range(3))
    links = Links(within_node=count / 2, between_nodes=count / 5)
    plan = Plan(((local, near, far), (near,), (local,)), 0)
    assert wire_seconds(plan, trainers, workers, links) == pytest.approx(2 + 5 + 2)


@pytest.mark.slow
def test_the_30b_model_is_planned_and_balanced() -> None:
    """TP2 PP2 EP8 on 16 cards to TP4 on 4 others: no round lets a rank wait for long."""
    hf = json.loads((PUBLISHED / "nemotron_3_nano_30b_a3b/config.json").read_text())
    parallel = ParallelConfig(tensor=2, pipeline=2, expert=8, sequence=True)
    trainers = [Member(place_of(rank, 16, parallel), f"t{rank}", f"t{rank // 8}") for rank in range(16)]
    workers = [Member(WorkerPlace(Cut(rank, 4)), f"w{rank}", "w") for rank in range(4)]
    plan = make_plan(hf, trainers, workers, lambda parameter: 2, 256 << 20)
    at_best = plan.lower_bound / 4 / Links().between_nodes
    assert plan.wire_bytes() == plan.lower_bound
    assert wire_seconds(plan, trainers, workers, Links()) < 1.15 * at_best
