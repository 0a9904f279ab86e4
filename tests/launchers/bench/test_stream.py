"""A step of 64 ranks over a wire that counts: who gets how much of it."""

import pytest

from cascade_rl.launchers.bench import stream
from cascade_rl.launchers.bench.stream import Costs

RANKS, SAMPLES = 64, 32  # four replicas


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> float:
    """Gigabytes of a batch of short samples."""
    monkeypatch.setattr(stream, "TOKENS", 1024)
    monkeypatch.setattr(stream, "PROMPT", 64)
    return stream._batch(SAMPLES).bytes / 1e9


def step(way: str) -> Costs:
    work, present = {"replicas": (stream._to_replicas, RANKS), "all": (stream._to_all, 2)}[way]
    return stream._measured(work, RANKS, SAMPLES, present)


def test_rank_0_sends_a_batch_once_and_a_rank_gets_its_replicas_quarter(small: float) -> None:
    costs = step("replicas")
    assert costs["any other"].held == pytest.approx(small / 4)
    assert small / 4 < costs["any other"].received < small / 3.5  # and what every rank knows
    assert small < costs["0"].sent < 1.3 * small
    assert costs["0"].received < 0.1 * small  # log-probs


def test_the_way_it_is_compared_with_brings_all_of_it_to_every_rank(small: float) -> None:
    costs = step("all")
    assert costs["any other"].received > 0.95 * small
    assert costs["0"].sent > 6 * 0.95 * small  # in a tree of 64
