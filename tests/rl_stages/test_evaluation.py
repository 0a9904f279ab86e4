"""Held-out scores: means over the answers that have one, where enough of them do."""

from types import SimpleNamespace
from typing import Any

import pytest

from cascade_rl.rl_stages.core.verdict import Verdict
from cascade_rl.rl_stages.evaluation import evaluate
from cascade_rl.rl_stages.scoring.infrastructure import InfrastructureFailures
from tests.rl_stages.tiny_cascade import CASCADE

BROKEN = Verdict.infrastructure_failure("disk full")


def scores(verdicts: list[Verdict]) -> dict[str, float]:
    """Of 32 prompts of each domain, whose answers get these verdicts in turn."""
    zero = SimpleNamespace(judge=lambda tasks, groups: [[("", verdicts[i % len(verdicts)])] for i in range(len(tasks))])
    session: Any = SimpleNamespace(
        cascade=CASCADE,
        draw=lambda label, tasks, group, sampling, heldout: [
            [SimpleNamespace(id=f"{label}/{i}")] for i in range(len(tasks))
        ],
        on_rank0=lambda produce: produce(zero),
    )
    return evaluate(session)


def test_failures_below_the_bound_are_left_out_of_the_mean() -> None:
    verdicts = [BROKEN] * 2 + [Verdict.scored(1.0)] * 15 + [Verdict.scored(0.0)] * 15
    assert scores(verdicts) == {"instruction_following": 0.5, "math": 0.5}


def test_failures_beyond_the_bound_end_the_stage() -> None:
    verdicts = [BROKEN] * 4 + [Verdict.scored(1.0)] * 28
    with pytest.raises(InfrastructureFailures) as error:
        scores(verdicts)
    assert "held-out instruction_following: 4 of 32 answers could not be scored" in str(error.value)
    assert "disk full" in str(error.value)
    assert "heldout-instruction_following/0, heldout-instruction_following/1" in str(error.value)
