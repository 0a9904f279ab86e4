import math

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.settings import OptimizerConfig
from cascade_rl.engine.train.schedule import learning_rate

TOTAL = 12


def rates(**settings) -> list[float]:
    return [learning_rate(step, OptimizerConfig(**settings), TOTAL) for step in range(TOTAL + 2)]


def test_constant_with_the_warm_up_of_mopd():
    config = OptimizerConfig(lr=2e-6, warmup_steps=30, warmup_init_lr=2e-7)  # arXiv 2603.19220, section 4.4
    assert learning_rate(0, config, 52) == 2e-7
    assert learning_rate(15, config, 52) == pytest.approx(1.1e-6)
    assert [learning_rate(step, config, 52) for step in (30, 31, 51, 99)] == pytest.approx([2e-6] * 4)


def test_linear():
    found = rates(lr=1.0, schedule="linear", warmup_steps=2, min_lr=0.5)
    expected = [0.0, 0.5, *(1.0 - 0.05 * step for step in range(10)), 0.5, 0.5]
    assert found == pytest.approx(expected, abs=1e-12)


def test_cosine():
    found = rates(lr=1.0, schedule="cosine", warmup_steps=2, min_lr=0.5)
    expected = [0.0, 0.5, *(0.75 + 0.25 * math.cos(math.pi * step / 10) for step in range(10)), 0.5, 0.5]
    assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_no_update_after_warm_up_has_rate_zero(schedule: str):
    found = rates(lr=1.0, schedule=schedule, warmup_steps=3, warmup_init_lr=0.1)
    assert all(rate > 0 for rate in found[:TOTAL])
    assert max(found) == found[3] == 1.0
    assert sorted(found[3:], reverse=True) == found[3:]


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_warm_up_longer_than_the_run(schedule: str):
    found = rates(lr=1.0, schedule=schedule, warmup_steps=20)
    assert found == pytest.approx([step / 20 for step in range(TOTAL + 2)])


def test_an_unknown_schedule_lists_the_known_ones():
    with pytest.raises(UserError, match="constant, linear, cosine; found 'cosin'"):
        learning_rate(0, OptimizerConfig(schedule="cosin"), TOTAL)
