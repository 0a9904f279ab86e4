"""A batch of samples survives the death of the engine's process, wherever it happens, a few times."""

from collections.abc import Container, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from cascade_rl.engine.backend.process_groups import join_ranks
from cascade_rl.engine.core.rollouts import PART, Request, Rollout, Sampling
from cascade_rl.engine.rollout.client import EngineDied
from cascade_rl.engine.rollout.engine import Follow, single_turn
from cascade_rl.engine.sync import sampler
from cascade_rl.engine.sync.sampler import RESTARTS, Batch, sample
from tests.gloo import run_ranks

REQUESTS = [Request(name, (1, 2), Sampling(4), seed=seed) for seed, name in enumerate("abcde")]


def rollout_of(request: Request) -> Rollout:
    prompt, ids = np.array(request.prompt_ids), np.array([request.seed])
    return Rollout(request.id, prompt, ids, np.zeros(1, np.float32), None, ((0, 0),), "stop")


class FragileEngine:
    """Keeps the promises of RolloutEngine and, for each life, does so many things before it dies.

    `lives` counts actions (a start, a submit, a result, new weights); a life that has none left raises EngineDied. It
    is also the stand-in's Refit: `send` brings weights, without which a restarted engine holds everything back.
    """

    def __init__(self, lives: list[float]) -> None:
        self.lives = lives
        self.pending: dict[str, Request] = {}
        self.told: list[str] = []
        self.has_weights = True
        self.successors = 0  # those that have started while others draw

    def act(self, name: str) -> None:
        if self.lives[0] == 0:
            raise EngineDied(-9, tuple(self.pending), Path("log"), "")
        self.lives[0] -= 1
        self.told.append(name)

    def generate(
        self, requests: Sequence[Request], follow: Follow = single_turn, finished: Container[str] = ()
    ) -> Iterator[Rollout]:
        if requests:
            self.pending |= {request.id: request for request in requests if request.id not in finished}
            self.act("submit")
        assert self.has_weights
        for request in list(self.pending.values())[::-1]:  # in another order than asked
            self.act("result")
            yield rollout_of(self.pending.pop(request.id))

    def restart(self) -> None:
        self.lives.pop(0)
        self.has_weights = False
        self.told.append("restart")
        self.act("started")

    def awaits_weights(self) -> bool:
        return self.successors > 0

    def send(self) -> None:
        self.act("send")
        self.has_weights, self.successors = True, 0


@dataclass
class Outcome:
    ids: list[str]
    told: list[str]
    deaths: int
    error: str


def run(lives: list[float]) -> Outcome:
    (outcome,) = run_ranks(1, batch, lives)
    return outcome


def batch(lives: list[float]) -> Outcome:
    join_ranks()
    engine, error, rollouts = FragileEngine(lives), "", list[Rollout]()
    requests = Batch(engine, REQUESTS)  # type: ignore[arg-type]
    try:
        rollouts = sample(requests, engine)  # type: ignore[arg-type]
    except EngineDied as death:
        error = str(death)
    return Outcome([rollout.id for rollout in rollouts], engine.told, len(requests.deaths), error)


@pytest.mark.parametrize(
    ("lives", "told"),
    [
        ([np.inf], ["submit", *["result"] * 5]),
        ([3, np.inf], ["submit", "result", "result", "restart", "started", "send", *["result"] * 3]),
        ([0, np.inf], ["restart", "started", "send", *["result"] * 5]),
        ([1, 0, np.inf], ["submit", "restart", "restart", "started", "send", *["result"] * 5]),
        ([6, np.inf], ["submit", *["result"] * 5]),
    ],
    ids=["alive", "dies while sampling", "was dead already", "dies again at its start", "dies afterwards"],
)
def test_every_request_is_answered_once_in_order(lives: list[float], told: list[str]) -> None:
    outcome = run(lives)
    assert outcome.ids == [request.id for request in REQUESTS]
    assert outcome.told == told
    assert outcome.deaths == told.count("restart")


def test_an_engine_that_keeps_dying_is_given_up() -> None:
    outcome = run([3.0] * (RESTARTS + 1))
    assert "died with exit code -9" in outcome.error
    assert outcome.deaths == outcome.told.count("restart") == RESTARTS


class OneOfSeveral(FragileEngine):
    """Its samples go on elsewhere at once. What it tells first of a sample is a part."""

    def generate(
        self, requests: Sequence[Request], follow: Follow = single_turn, finished: Container[str] = ()
    ) -> Iterator[Rollout]:
        for rollout in super().generate(requests, follow, finished):
            yield replace(rollout, finish=PART)
            yield rollout

    def restart(self) -> bool:
        self.lives.pop(0)
        self.told.append("others go on")
        return True


@pytest.mark.parametrize("ahead", [False, True])
def test_where_others_go_on_no_weights_are_waited_for(ahead: bool) -> None:
    """Nor is the trainer, which may be learning."""
    engine = OneOfSeveral([3, 1, np.inf])
    batch = Batch(engine, REQUESTS)  # type: ignore[arg-type]
    parts = list[str]()
    batch.receive_part = lambda part: parts.append(part.id)  # type: ignore[method-assign]
    with ThreadPoolExecutor(1) as thread:
        if ahead:
            batch.begin(thread)
        assert batch.collect()
    assert [rollout.id for rollout in batch.in_order()] == [request.id for request in REQUESTS]
    assert sorted(parts) == [request.id for request in REQUESTS]
    assert engine.told == ["submit", "result", "result", "others go on", "result", "others go on", *["result"] * 2]
    assert len(batch.deaths) == 2


def test_an_engine_that_has_started_since_the_last_draw_gets_weights_before_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sampler, "from_rank0", lambda produce: produce())
    engine = FragileEngine([np.inf])
    engine.successors = 1
    assert len(sample(Batch(engine, REQUESTS), engine)) == len(REQUESTS)  # type: ignore[arg-type]
    assert engine.told == ["send", "submit", *["result"] * 5]


@pytest.mark.parametrize(("largest", "dtype"), [(255, np.uint8), (256, np.int16)])
def test_routes_are_in_the_smallest_dtype(
    largest: int, dtype: type[np.number], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "from_rank0", lambda produce: produce())
    routes = np.array([[[0, largest]]], np.int16)
    batch = Batch(FragileEngine([9.0]), [], finished={})  # type: ignore[arg-type]
    batch.requests, batch.rollouts = REQUESTS[:1], {"a": replace(rollout_of(REQUESTS[0]), routes=routes)}
    (shared,) = sample(batch, None)  # type: ignore[arg-type]
    assert shared.routes is not None
    assert shared.routes.dtype == dtype
    np.testing.assert_array_equal(shared.routes, routes)
