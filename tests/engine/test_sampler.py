"""A batch of samples survives the death of the engine's process, wherever it happens, a few times."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest

from cascade_rl.engine.rollout.client import EngineDied
from cascade_rl.engine.sample import Request, Rollout, Sampling
from cascade_rl.engine.sampler import RESTARTS, sample

REQUESTS = [Request(name, (1, 2), Sampling(4), seed=seed) for seed, name in enumerate("abcde")]


def rollout_of(request: Request) -> Rollout:
    prompt, ids = np.array(request.prompt_ids), np.array([request.seed])
    return Rollout(request.id, prompt, ids, np.zeros(1, np.float32), None, ((0, 0),), "stop")


class FragileEngine:
    """Keeps the promises of RolloutEngine and, for each life, does so many things before it dies.

    `lives` counts actions (a submit, a result, new weights); a life that has none left raises EngineDied. It is
    also the stand-in's Refit: `send` brings weights, without which a restarted engine holds everything back.
    """

    def __init__(self, lives: list[float]) -> None:
        self.lives = lives
        self.pending: dict[str, Request] = {}
        self.told: list[str] = []
        self.has_weights = True

    def act(self, name: str) -> None:
        if self.lives[0] == 0:
            raise EngineDied(-9, tuple(self.pending), Path("log"), "")
        self.lives[0] -= 1
        self.told.append(name)

    def submit(self, requests: Iterable[Request]) -> None:
        self.pending |= {request.id: request for request in requests}
        self.act("submit")

    def results(self) -> Iterator[Rollout]:
        assert self.has_weights
        for request in list(self.pending.values())[::-1]:  # in another order than asked
            self.act("result")
            yield rollout_of(self.pending.pop(request.id))

    def restart(self) -> None:
        self.lives.pop(0)
        self.has_weights = False
        self.told.append("restart")

    def send(self) -> None:
        self.act("send")
        self.has_weights = True


def run(lives: list[float]) -> tuple[list[Rollout], FragileEngine, int, int]:
    engine, finished, deaths = FragileEngine(lives), [], []
    rollouts = sample(
        engine,  # type: ignore[arg-type]
        engine,  # type: ignore[arg-type]
        REQUESTS,
        finished=lambda: finished.append(1),
        died=deaths.append,
    )
    return rollouts, engine, len(finished), len(deaths)


@pytest.mark.parametrize(
    ("lives", "told"),
    [
        ([np.inf], ["submit", *["result"] * 5]),
        ([3, np.inf], ["submit", "result", "result", "restart", "send", *["result"] * 3]),
        ([0, np.inf], ["restart", "send", *["result"] * 5]),
        ([1, 0, np.inf], ["submit", "restart", "restart", "send", *["result"] * 5]),
        ([6, np.inf], ["submit", *["result"] * 5]),
    ],
    ids=["alive", "dies while sampling", "was dead already", "dies again at its start", "dies afterwards"],
)
def test_every_request_is_answered_once_in_order(lives: list[float], told: list[str]) -> None:
    rollouts, engine, finished, deaths = run(lives)
    assert [rollout.id for rollout in rollouts] == [request.id for request in REQUESTS]
    assert engine.told == told
    assert finished == len(REQUESTS)
    assert deaths == told.count("restart")


def test_an_engine_that_keeps_dying_is_given_up() -> None:
    engine, deaths = FragileEngine([2.0] * (RESTARTS + 1)), []
    with pytest.raises(EngineDied):
        sample(engine, engine, REQUESTS, finished=lambda: None, died=deaths.append)  # type: ignore[arg-type]
    assert len(deaths) == engine.told.count("restart") == RESTARTS
