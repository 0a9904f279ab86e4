"""Factors alone, by any plan, make of a worker's base the weights that it would have got merged, bit for bit."""

import numpy as np
import pytest
import torch

from cascade_rl.engine.core.settings import LoraConfig
from cascade_rl.engine.lora.merge import merged
from cascade_rl.engine.lora.rules import factor_map, factor_name
from cascade_rl.engine.models import family_of
from cascade_rl.engine.refit.factors import moved_map, moved_shards, worker_adapters
from cascade_rl.engine.refit.plan import make_plan
from cascade_rl.engine.refit.vllm_map import worker_shards
from tests.engine.refit.refit_layouts import (
    DEEPSEEK_V3,
    GLM4_MOE,
    NEMOTRON,
    PAIRS,
    QWEN3_MOE,
    Pair,
    fitting,
    hf_numbers,
    laid_out,
)

LORA = LoraConfig(rank=3)
CASES = [
    *((pair, NEMOTRON) for pair in PAIRS),
    *((pair, QWEN3_MOE) for pair in PAIRS[::3]),
    (PAIRS[2], GLM4_MOE),
    (PAIRS[1], DEEPSEEK_V3),
]


def drawn_factors(hf: dict) -> dict[str, np.ndarray]:
    generator, tensors = np.random.default_rng(0), factor_map(family_of(hf).name_map(hf), LORA).hf_tensors()
    return {name: generator.normal(size=tensor.shape).astype(np.float32) for name, tensor in tensors.items()}


def arrived(pair: Pair, hf: dict, factors: dict[str, np.ndarray]) -> list[dict[str, torch.Tensor]]:
    """The factors that each worker has after a refit, each number sent once."""
    plan = make_plan(hf, pair.trainers(), pair.workers(), lambda _: 4, 1000, lora=LORA)
    assert plan.wire_bytes() == plan.lower_bound
    held = [
        {shard.name: laid_out(shard.shape, shard.blocks, factors) for shard in moved_map(hf, LORA).shards(each.place)}
        for each in pair.trainers()
    ]
    shards = [moved_shards(hf, LORA, worker.place) for worker in pair.workers()]
    found = [{shard.name: np.full(shard.shape, np.nan, np.float32) for shard in own} for own in shards]
    for transfer in (t for buckets in plan.rounds for bucket in buckets for t in bucket.transfers):
        room = found[transfer.target][transfer.parameter][transfer.target_index]
        assert np.isnan(room).all()
        room[...] = held[transfer.source][transfer.shard][transfer.source_index]
    return [{name: torch.from_numpy(array) for name, array in own.items()} for own in found]


@pytest.mark.parametrize(("pair", "hf"), CASES, ids=lambda value: getattr(value, "name", None))
def test_a_worker_makes_the_weights_that_were_merged_elsewhere(pair: Pair, hf: dict) -> None:
    pair, base, factors = fitting(pair, hf), hf_numbers(hf), drawn_factors(hf)
    whole = dict(base)
    for name in {name for name in base if factor_name(name, "A") in factors}:
        a, b = (torch.from_numpy(factors[factor_name(name, factor)]) for factor in "AB")
        whole[name] = merged(torch.from_numpy(base[name]), b, a, LORA.scale).numpy()
    for worker, own in zip(pair.workers(), arrived(pair, hf, factors), strict=True):
        shards = {shard.name: shard for shard in worker_shards(hf, worker.place)}
        made = {name: torch.from_numpy(laid_out(s.shape, s.blocks, base)) for name, s in shards.items()}
        for adapter in worker_adapters(hf, LORA, worker.place):
            for index, rows in adapter.pieces:
                part = made[adapter.parameter][index]
                b, a = own[adapter.b.name][rows], own[adapter.a.name]
                part.copy_(merged(part.flatten(end_dim=-2), b, a, LORA.scale).view_as(part))
        for name, shard in shards.items():
            np.testing.assert_array_equal(made[name], laid_out(shard.shape, shard.blocks, whole), err_msg=name)


def test_all_workers_call_their_factors_alike() -> None:
    """The dtypes of one worker's are those of all."""
    pair = next(pair for pair in PAIRS if pair.expert and pair.tensor == 2)
    names = [[shard.name for shard in moved_shards(QWEN3_MOE, LORA, w.place)] for w in pair.workers()]
    assert names[0] == names[1] and len(set(names[0])) == len(names[0])
