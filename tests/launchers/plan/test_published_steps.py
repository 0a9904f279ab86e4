"""What the plan says of steps that others have measured. No assumption is fitted to them."""

import math
from pathlib import Path

import pytest

from tests.launchers.plan.published_steps import STEPS, PublishedStep

PAGE = (Path(__file__).parents[3] / "docs/plan.md").read_text()


@pytest.mark.parametrize("step", STEPS, ids=lambda step: f"{step.hardware}-{step.model}-{step.gpus}-{step.longest}")
def test_the_page_has_the_prediction_of_each_step_with_its_error(step: PublishedStep) -> None:
    assert step.told in PAGE, f"expected in docs/plan.md:\n{step.told}"


def test_the_page_says_by_which_factor_a_prediction_is_off() -> None:
    off = [abs(math.log(step.predicted / step.seconds)) for step in STEPS]
    asynchronous = [error for error, step in zip(off, STEPS, strict=True) if step.staleness]
    told = f"by a factor of {_mean(off):.2f}; those that are not in turn by {_mean(asynchronous):.2f}"
    assert told in " ".join(PAGE.split()), told


def _mean(logarithms: list[float]) -> float:
    return math.exp(sum(logarithms) / len(logarithms))
