"""Samples that new weights reach while they run, behind a real session: what they say of it, and what a kill leaves."""

import random
import shutil
import time
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from threading import Event, Lock
from typing import Any

import numpy as np
import pytest

from cascade_rl.engine.core.rollouts import Request, Rollout
from cascade_rl.rl_stages.run.ledger import Ledger, read_ledger
from cascade_rl.rl_stages.run.run_folder import RunFolder
from cascade_rl.rl_stages.run.sample_record import read_samples
from tests.gloo import run_ranks
from tests.rl_stages.test_rollout_stream import (
    DEATH,
    GUESS,
    SAMPLES,
    STEPS,
    AheadSession,
    Killed,
    Told,
    ahead,
    attempt,
    is_easy,
    require_replayed,
)
from tests.rl_stages.test_scripted_engine import ScriptedEngine

STALENESS = 2
STAGE = {"staleness": STALENESS, "checkpoint_every": STEPS, "keep_checkpoints": 9}


@dataclass
class Running:
    """A sample of which `count` tokens are drawn."""

    request: Request
    ids: np.ndarray
    count: int = 0
    spans: list[tuple[int, int]] = field(default_factory=list)

    def draw(self, version: int) -> None:
        if not self.spans or self.spans[-1][0] != version:
            self.spans.append((version, self.count))
        self.count += 1

    def ended(self) -> Rollout:
        prompt, logprobs = np.array(self.request.prompt_ids), np.full(len(self.ids), GUESS)
        return Rollout(self.request.id, prompt, self.ids, logprobs, None, tuple(self.spans), "stop")


class FlightEngine(ScriptedEngine):
    """Draws a token of each sample in turn, with delays of its own. The last sample of a step's first draw waits with
    its last token for the weights that learn from it."""

    dies_at, death, late_ones_last = "", Killed(), False

    def __init__(self, tokenizer: Any, told: Told, filtered: bool) -> None:
        super().__init__(tokenizer)
        self.learning = Event()  # of no use here
        self.told, self.filtered, self.pause = told, filtered, random.Random(AheadSession.delays)
        self.running, self.late, self.lock = dict[str, Running](), dict[str, int](), Lock()
        self.dead = False

    def submit(self, requests: Sequence[Request]) -> None:
        with self.lock:
            for number, request in enumerate(requests):
                right = number % 2 == 0 or (self.filtered and is_easy(request.id))
                self.running[request.id] = Running(request, self.answers[0 if right else 1])
            *_, step, _, _, _ = requests[-1].id.split("/")
            if step.isdigit():
                self.late[requests[-1].id] = int(step) - 1

    def generate(
        self, requests: Sequence[Request], follow: object = None, finished: Container[str] = ()
    ) -> Iterator[Rollout]:
        if requests:
            self.submit(requests)
        while self.running:
            for name in list(self.running):
                if ended := self.step(name):
                    self.told.drawn.append(name)
                    yield ended
            time.sleep(self.pause.random() / 1000)

    def step(self, name: str) -> Rollout | None:
        with self.lock:
            sample = self.running[name]
            if sample.count == len(sample.ids) - 1 and self.waits(name):
                return None
            if self.dead or name == self.dies_at:
                self.dies_at, self.dead = "", True
                raise self.death
            sample.draw(self.version)
            return self.running.pop(name).ended() if sample.count == len(sample.ids) else None

    def waits(self, name: str) -> bool:
        beside = self.late_ones_last and name in self.late and not self.running.keys() <= self.late.keys()
        return beside or self.version < self.late.get(name, 0)

    def restart(self) -> None:
        self.dead = False
        self.told.events.append("restart")

    def lacking(self, version: int) -> dict[int, int]:
        with self.lock:
            self.told.events.append(f"refit {version} with {len(self.running)} in flight")
            return super().lacking(version)


@pytest.fixture(autouse=True)
def in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AheadSession, "engine_class", FlightEngine)


@dataclass
class Finished:
    run: RunFolder
    told: Told
    error: str


def finish(root: Path, dies_at: str = "", death: Any = None, **settings: Any) -> Finished:
    root.mkdir(exist_ok=True)
    with RunFolder.claim(root / "run", ahead(root, **STAGE | settings)) as (run, _):
        ((told, error),) = run_ranks(1, attempt, run, dies_at, death)
    return Finished(run, told, error)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AheadSession, "engine_class", FlightEngine)
        return finish(tmp_path_factory.mktemp("flight"), checkpoint_every=1)


def spans(run: RunFolder, step: int) -> list[list[tuple[int, int]]]:
    rows = read_samples(run.stage("rl").rollouts(step))
    assert len(rows) == SAMPLES
    return [row["versions"] for row in rows]


def test_a_refit_waits_for_no_sample_and_each_says_what_it_is_of(undisturbed: Finished) -> None:
    """Otherwise the last sample of each step would not have come."""
    assert undisturbed.error == ""
    counts = [int(event.split()[3]) for event in undisturbed.told.events]
    assert min(counts[1:STEPS]) > 0
    for step in range(1, STEPS + 1):
        found = spans(undisturbed.run, step)
        oldest = max(step - 1 - STALENESS, 0)
        assert all(oldest <= own[0][0] and own == sorted(own) for own in found)
        assert found[-1][-1][0] == step - 1
        assert (len(found[-1]) > 1) == (step > 1)
    assert undisturbed.told.learned > 1
    assert sorted(set(undisturbed.told.drawn)) == sorted(undisturbed.told.drawn)


def test_what_is_stale_is_measured(undisturbed: Finished) -> None:
    rows = undisturbed.run.stage("rl").metrics.rows()
    assert "age" not in rows[0]
    assert all(0 < row["age"] <= row["age_max"] <= STALENESS for row in rows[1:])


def require_same(run: RunFolder, expected: RunFolder, steps: int = STEPS) -> None:
    found, wanted = run.stage("rl"), expected.stage("rl")
    assert found.metrics.rows()[:steps] == wanted.metrics.rows()[:steps]
    for step in range(1, steps + 1):
        assert found.rollouts(step).read_bytes() == wanted.rollouts(step).read_bytes()


def test_the_same_schedule_ends_in_the_same_weights_whatever_the_delays(
    undisturbed: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What became of the first run's samples is in its ledger: each comes at the version at which it ended there."""
    with RunFolder.claim(tmp_path / "run", ahead(tmp_path, **STAGE)) as (run, _):
        for path in undisturbed.run.stage("rl").ledgers(0):
            shutil.copy(path, run.stage("rl").ledger(0).with_name(path.name))
    monkeypatch.setattr(AheadSession, "delays", 7)
    again = finish(tmp_path)
    assert (again.error, again.told.drawn, again.told.judged) == ("", [], [])
    require_same(again.run, undisturbed.run)
    assert again.told.learned == undisturbed.told.learned


def test_a_killed_attempt_loses_nothing_and_draws_nothing_twice(undisturbed: Finished, tmp_path: Path) -> None:
    """Killed in step 4, without a checkpoint: steps 1 to 3 are learned again, from the same samples."""
    name = next(name for name in undisturbed.told.drawn if name.startswith("rl/4/2/"))
    first = finish(tmp_path, dies_at=name)
    assert first.error.startswith("Killed")
    metrics = first.run.stage("rl").metrics.rows()
    assert len(metrics) >= 1
    second = finish(tmp_path)
    assert second.error == ""
    assert second.run.stage("rl").metrics.rows()[: len(metrics)] == metrics
    assert sorted(first.told.drawn + second.told.drawn) == sorted(undisturbed.told.drawn)
    assert len(first.told.judged + second.told.judged) == len(undisturbed.told.judged)


@pytest.mark.long
def test_samples_of_weights_that_are_others_now_are_drawn_again(undisturbed: Finished, tmp_path: Path) -> None:
    with RunFolder.claim(tmp_path / "run", ahead(tmp_path, **STAGE)) as (run, _):
        for path in undisturbed.run.stage("rl").ledgers(0):
            shutil.copy(path, run.stage("rl").ledger(0).with_name(path.name))
        with Ledger() as ledger:
            ledger.open(run.stage("rl").ledger(2), "others")
    again = finish(tmp_path)
    recorded = [read_ledger(path).rollouts for path in undisturbed.run.stage("rl").ledgers(0)]
    late = {name for rollouts in recorded for name, rollout in rollouts.items() if rollout.newest >= 2}
    assert again.error == ""
    assert late <= set(again.told.drawn) < set(undisturbed.told.drawn)
    require_same(again.run, undisturbed.run, steps=2)


@pytest.mark.long
def test_an_engine_that_dies_in_flight_is_replaced(undisturbed: Finished, tmp_path: Path) -> None:
    name = next(name for name in undisturbed.told.drawn if name.startswith("rl/3/2/"))
    found = finish(tmp_path, dies_at=name, death=DEATH)
    assert (found.error, found.told.events.count("restart")) == ("", 1)
    assert sorted(found.told.drawn) == sorted(undisturbed.told.drawn)


@pytest.mark.long
def test_dynamic_filtering_draws_beside_what_is_in_flight(tmp_path: Path) -> None:
    """Another attempt gives each step the prompts that it had."""
    whole = finish(tmp_path / "whole", dynamic_filtering=True)
    assert whole.error == ""
    name = next(name for name in whole.told.drawn if name.startswith("rl/3+1/"))
    first = finish(tmp_path / "killed", dies_at=name, dynamic_filtering=True, checkpoint_every=1)
    assert first.error.startswith("Killed")
    second = finish(tmp_path / "killed", dynamic_filtering=True, checkpoint_every=1)
    assert second.error == ""
    assert sorted(first.told.drawn + second.told.drawn) == sorted(whole.told.drawn)


def test_a_step_is_replayed(undisturbed: Finished) -> None:
    """One whose samples are of several weights."""
    require_replayed(undisturbed.run, 3)


def learned_groups(run: RunFolder) -> list[list[tuple[int, int]]]:
    """By step, the groups that it learned from: the step that asked for them, and their places."""
    names = [[row["id"].split("/") for row in read_samples(run.stage("rl").rollouts(n + 1))] for n in range(STEPS)]
    return [sorted({(int(step) - 1, int(place)) for _, step, place, *_ in own}) for own in names]


ENDING = {"staleness": 3, "order": "ending"}


@pytest.mark.long
def test_a_step_learns_from_what_ended_first_and_another_attempt_from_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each group once, at the latest a step after that which asked for it. Killed in step 4, with a checkpoint of step
    2, the steps are those that they were; and so they are with other delays."""
    monkeypatch.setattr(FlightEngine, "late_ones_last", True)
    whole = finish(tmp_path / "whole", **ENDING)
    assert whole.error == ""
    groups = learned_groups(whole.run)
    places = len(groups[0])
    assert groups[0] == [(0, place) for place in range(places)]  # nothing else had begun
    assert (1, places - 1) not in groups[1] and (1, places - 1) in groups[2]
    assert sorted(chain(*groups)) == [(step, place) for step in range(STEPS) for place in range(places)]
    assert all(begun >= step - 1 for step, own in enumerate(groups) for begun, _ in own)
    assert len(whole.told.drawn) == len(set(whole.told.drawn)) == STEPS * SAMPLES
    assert max(row.get("age_max", 0) for row in whole.run.stage("rl").metrics.rows()) <= 3

    name = next(name for name in whole.told.drawn if name.startswith("rl/4/2/"))
    first = finish(tmp_path / "killed", dies_at=name, checkpoint_every=2, **ENDING)
    assert first.error.startswith("Killed")
    metrics = first.run.stage("rl").metrics.rows()
    monkeypatch.setattr(AheadSession, "delays", 7)
    second = finish(tmp_path / "killed", checkpoint_every=2, **ENDING)
    assert second.error == ""
    assert second.run.stage("rl").metrics.rows()[: len(metrics)] == metrics
    assert sorted(first.told.drawn + second.told.drawn) == sorted(whole.told.drawn)
    assert sorted(chain(*learned_groups(second.run))) == sorted(chain(*groups))
    require_replayed(second.run, 3)

    (tmp_path / "again").mkdir()
    with RunFolder.claim(tmp_path / "again/run", ahead(tmp_path / "again", **STAGE | ENDING)) as (run, _):
        for path in whole.run.stage("rl").ledgers(0):
            shutil.copy(path, run.stage("rl").ledger(0).with_name(path.name))
    again = finish(tmp_path / "again", **ENDING)
    assert (again.error, again.told.drawn) == ("", [])
    require_same(again.run, whole.run)


@pytest.mark.long
def test_dynamic_filtering_and_the_order_of_ending(tmp_path: Path) -> None:
    whole = finish(tmp_path / "whole", dynamic_filtering=True, **ENDING)
    assert whole.error == ""
    name = next(name for name in whole.told.drawn if name.startswith("rl/3+1/"))
    first = finish(tmp_path / "killed", dies_at=name, dynamic_filtering=True, checkpoint_every=1, **ENDING)
    assert first.error.startswith("Killed")
    second = finish(tmp_path / "killed", dynamic_filtering=True, checkpoint_every=1, **ENDING)
    assert second.error == ""
    drawn = first.told.drawn + second.told.drawn
    assert len(drawn) == len(set(drawn))
