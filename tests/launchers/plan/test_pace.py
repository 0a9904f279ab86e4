"""A step by who waits for whom."""

from dataclasses import replace

import pytest

from cascade_rl.launchers.plan.pace import STEP, pace_of, way_of
from cascade_rl.launchers.plan.stage_plan import Phase, StagePlan

SECONDS = {"engine": 60.0, "verify": 10.0, "log-prob": 5.0, "train": 25.0, "control": 2.0, "refit": 3.0}


@pytest.mark.parametrize(
    ("max_staleness", "step"),
    [(0, 70 + 32 + 3), (1, 70 + 3), (2, 40)],  # of two or more, the long run
)
def test_a_step(max_staleness: int, step: float) -> None:
    assert STEP[way_of(max_staleness)](pace_of(SECONDS, flow=40.0)) == step


def test_the_step_of_a_stage_is_that_of_its_way() -> None:
    phases = tuple(Phase(name, {}, value) for name, value in SECONDS.items())
    made = StagePlan("rl", "grpo", 8, 1, (), phases=phases, flow=40.0)
    steps = [replace(made, way=way_of(staleness)).step_seconds for staleness in (0, 1, 2)]
    assert steps == [105, 73, 40]


def test_a_trainer_that_is_slower_decides() -> None:
    slow = pace_of(SECONDS | {"train": 100.0}, flow=40.0)
    assert (slow.ahead, slow.in_flight) == (107 + 3, 107 + 3)


def test_in_flight_programs_are_checked_beside_sampling() -> None:
    assert pace_of(SECONDS | {"verify": 50.0}, flow=40.0).in_flight == 50
