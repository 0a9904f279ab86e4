"""The GPUs of a stage, shared between trainer and engines."""

from dataclasses import replace
from typing import Any

import pytest

from cascade_rl.launchers.plan.cascade_plan import Plan
from cascade_rl.launchers.plan.search.split import pace_with, splits
from cascade_rl.launchers.plan.stage_plan import Setting, StagePlan, engines, flow, memory, problems
from cascade_rl.launchers.plan.table import plain_text
from tests.launchers.plan.published_steps import STEPS

NANO = next(step for step in STEPS if step.model == "qwen3_30b_a3b" and step.gpus == [32])
LAYOUT = replace(NANO.setting.layout, rollout=replace(NANO.setting.layout.rollout, kv_cache_mib=100_000))
SHARED = replace(NANO.setting, layout=LAYOUT, gpu=replace(NANO.setting.gpu, memory_gib=300.0))  # room for every split


def apart(nproc: int, engines: int, **rollout: Any) -> Setting:
    own = replace(SHARED.layout.rollout, placement="disaggregated", sleep=False, engines=engines, **rollout)
    return replace(SHARED, layout=replace(SHARED.layout, nproc=nproc, rollout=own))


def test_gpus_of_their_own_are_counted() -> None:
    assert (SHARED.gpus, SHARED.nodes) == (32, 4)
    assert (apart(16, 12).gpus, apart(16, 12).nodes) == (16 + 24, 5)


def test_the_best_split_is_no_slower_than_any_other() -> None:
    in_turn, ahead, in_flight = splits(SHARED)
    assert (in_turn.trainer, in_turn.engines, in_turn.gpus) == (32, 32, 32)
    assert in_turn.step == pytest.approx(pace_with(SHARED, 0).in_turn)
    for found, staleness in ((ahead, 1), (in_flight, in_flight.staleness)):
        others = [pace_with(apart(nproc, (32 - nproc) // 2), staleness) for nproc in (8, 16, 24)]
        steps = [pace.ahead if found is ahead else pace.in_flight for pace in others]
        assert found.step == pytest.approx(min(steps)) and found.trainer + found.engines == 32
    assert in_flight.staleness == 4 and in_flight.step < ahead.step < in_turn.step
    assert all(0 < share <= 1 for one in (in_turn, ahead, in_flight) for share in (one.trainer_busy, one.engines_busy))


def test_a_launcher_with_engines_apart_is_compared_with_the_same_gpus_in_turn() -> None:
    in_turn, ahead, _ = splits(apart(16, 8))
    assert (in_turn.trainer, ahead.gpus) == (32, 32)


def test_what_does_not_fit_is_left_out() -> None:
    """The optimizer of 16 ranks has more on each than that of 24."""
    small = replace(SHARED, gpu=replace(SHARED.gpu, memory_gib=0.0))
    assert splits(small) == ()
    base = apart(16, 8, kv_cache_mib=1024)
    wide = replace(base, layout=replace(base.layout, nproc=24))
    full = [max(sum(terms.values()) for terms in memory(setting).values()) for setting in (base, wide)]
    between = replace(base, gpu=replace(base.gpu, memory_gib=sum(full) / 2 / (1 << 30)))
    assert {split.trainer for split in splits(between) if split.way != "in turn"} == {24}


def test_an_engine_and_a_rank_that_are_apart_do_not_add_up() -> None:
    alone, together = memory(apart(16, 8)), memory(SHARED)
    assert sum(alone["engine"].values()) < sum(together["engine"].values())
    assert "engine process" not in alone["train"] and "engine process" in together["train"]


def test_engines_apart_have_whole_nodes() -> None:
    assert not any(problems(apart(16, 8)))
    *_, told = problems(apart(12, 8))
    assert told.startswith("nproc: expected whole nodes, a multiple of 8, ") and told.endswith("found 12.")
    assert not any("nodes" in told for told in problems(apart(4, 2)))  # all GPUs are on one


def test_a_split_says_how_to_start_it() -> None:
    in_turn, ahead, in_flight = splits(SHARED)
    assert in_turn.settings == ()  # the launcher's
    own = ("rl.rollout.engines=8", "rl.rollout.placement=disaggregated")
    assert ahead.settings == ("rl.nproc=16", *own, "rl.rollout.max_staleness=1", "rl.rollout.sleep=false")
    exact = replace(SHARED.layout.rollout, deterministic=True)
    _, ahead, in_flight = splits(replace(SHARED, layout=replace(SHARED.layout, rollout=exact)))
    assert not any("deterministic" in setting for setting in ahead.settings)
    assert in_flight.settings[-1] == "rl.rollout.deterministic=false"


def test_more_samples_in_flight_fill_the_engines_until_their_cache_is_full() -> None:
    """By Little's law: 16 engines with 128 samples of a step each, of 2,998 tokens on average and 3,896 at most."""
    steps = [flow(SHARED, staleness) for staleness in (1, 2, 4, 8, 64, 65)]
    assert steps == sorted(steps, reverse=True) and steps[-1] == steps[-2] < steps[0]
    work, time = SHARED.work, engines(SHARED)
    decoding = [
        128 * work.answer / batch * time.decode_step(batch, work.prompt + work.answer // 2)
        for batch in (int(128 * 2998 / 3896), int(2 * 128 * 2998 / 3896))
    ]
    assert steps[0] - steps[1] == pytest.approx(decoding[0] - decoding[1])


def test_the_table_has_a_row_for_each_way() -> None:
    stage = StagePlan("rl", "grpo", 32, 100, ())
    found = splits(SHARED)
    rows = plain_text(Plan("nano", SHARED.gpu, SHARED.assumed, "", "", (stage,), {"rl": found}))
    assert f"rl: fastest in flight: {' '.join(found[-1].settings)}\n" in rows
    told = [row.split()[:-5] for row in rows.splitlines() if "%" in row]
    assert told == [["rl", "in", "turn", "32"], ["ahead", "16", "+", "16"], ["in", "flight", "16", "+", "16"]]
