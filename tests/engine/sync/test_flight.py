"""Batches that are in flight together survive the death of an engine, with what others have told of their samples."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from cascade_rl.engine.core.rollouts import PART, Request, Rollout, Sampling
from cascade_rl.engine.rollout.client import EngineDied
from cascade_rl.engine.rollout.engine import single_turn
from cascade_rl.engine.sync.flight import Flight
from cascade_rl.engine.sync.sampler import Batch
from tests.engine.sync.test_sampler import rollout_of

REQUESTS = [Request(name, (1, 2), Sampling(4), seed=1) for name in "abcd"]


class DyingEngine:
    """Tells a part of each sample, then dies once, after `lives` samples. `others_go_on` is what its restart says."""

    def __init__(self, lives: int, others_go_on: bool) -> None:
        self.lives, self.others_go_on, self.has_weights = lives, others_go_on, True
        self.successor_started = Event()
        self.pending: list[Request] = []

    def submit(self, requests: Sequence[Request]) -> None:
        self.pending += requests

    def generate(self, *_: object) -> Iterator[Rollout]:
        while self.pending and self.has_weights:
            yield replace(rollout_of(self.pending[0]), finish=PART)
            if self.lives == 0:
                self.lives = -1
                raise EngineDied(-9, (), Path("log"), "")
            self.lives -= 1
            yield rollout_of(self.pending.pop(0))

    def awaits_weights(self) -> bool:
        return self.successor_started.is_set()

    def restart(self) -> bool:
        self.has_weights = self.others_go_on
        return self.others_go_on


class Told(Batch):
    parts = 0

    def receive_part(self, part: Rollout) -> None:
        self.parts += 1


@pytest.mark.parametrize("others_go_on", [True, False])
@pytest.mark.parametrize("lives", [0, 1, 3])
def test_each_batch_has_its_samples_and_their_parts(lives: int, others_go_on: bool) -> None:
    """Where nobody can go on, the batch that waits is told so, gets weights, and waits again."""
    engine = DyingEngine(lives, others_go_on)
    with ThreadPoolExecutor(1) as thread:
        flight = Flight(engine, single_turn, thread)  # type: ignore[arg-type]
        batches = [Told(engine, REQUESTS[:2], single_turn), Told(engine, REQUESTS[2:], single_turn)]  # type: ignore[arg-type]
        for batch in batches:
            flight.begin(batch, batch.requests)
        refits = 0
        for batch in batches:
            while not batch.collect():
                refits, engine.has_weights = refits + 1, True
                flight._receive()  # a real engine waits for the weights; this one has ended its round
    assert [[rollout.id for rollout in batch.in_order()] for batch in batches] == [["a", "b"], ["c", "d"]]
    assert refits == (0 if others_go_on else 1)
    assert sum(batch.parts for batch in batches) == 5  # of the sample that was cut, two
    assert sum(len(batch.deaths) for batch in batches) == 1


def test_a_successor_gets_weights_while_others_draw() -> None:
    """The batch that is waited for says so, when it has started and no earlier; what is in flight goes on."""

    class SlowEngine(DyingEngine):
        refitted = Event()

        def generate(self, *_: object) -> Iterator[Rollout]:
            for rollout in super().generate():
                if rollout.id == "c":
                    self.successor_started.set()
                    assert self.refitted.wait(60), "its successor got no weights while it drew"
                yield rollout

    engine = SlowEngine(1, others_go_on=True)
    with ThreadPoolExecutor(1) as thread:
        flight = Flight(engine, single_turn, thread)  # type: ignore[arg-type]
        batch = Batch(engine, REQUESTS, single_turn)  # type: ignore[arg-type]
        flight.begin(batch, REQUESTS)
        assert not batch.collect()
        assert batch.pending() == ["c", "d"]
        engine.successor_started.clear()
        engine.refitted.set()
        assert batch.collect()
    assert len(batch.deaths) == 1


def test_what_is_no_death_ends_the_sampling() -> None:
    class BrokenEngine(DyingEngine):
        def generate(self, *_: object) -> Iterator[Rollout]:
            raise ZeroDivisionError
            yield

    engine = BrokenEngine(0, others_go_on=True)
    with ThreadPoolExecutor(1) as thread:
        flight = Flight(engine, single_turn, thread)  # type: ignore[arg-type]
        batch = Batch(engine, REQUESTS, single_turn)  # type: ignore[arg-type]
        flight.begin(batch, REQUESTS)
        with pytest.raises(ZeroDivisionError):
            batch.collect()
