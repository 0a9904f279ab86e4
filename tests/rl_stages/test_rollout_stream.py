"""Samples drawn ahead of the trainer, behind a real session: what overlaps, of which version, what a kill does."""

from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from cascade_rl.engine.core.rollouts import Request, Rollout
from cascade_rl.engine.core.train_sequence import TrainSequence
from cascade_rl.engine.rollout.client import EngineDied
from cascade_rl.launchers.cli import replay
from cascade_rl.launchers.stage.recorded_step import RecordedStep
from cascade_rl.rl_stages import grpo
from cascade_rl.rl_stages.agreement import Mismatch
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.core.verdict import Verdict
from cascade_rl.rl_stages.passports import BrokenPassport
from cascade_rl.rl_stages.rewards.verifiers.math import MathVerifier
from cascade_rl.rl_stages.rollout_stream import WeightsGone
from cascade_rl.rl_stages.run.run_folder import RunFolder
from cascade_rl.rl_stages.run.sample_record import read_samples
from cascade_rl.rl_stages.session import Session
from tests.gloo import run_ranks
from tests.rl_stages.test_scripted_engine import ScriptedEngine, cascade, preference

STEPS, SAMPLES = 4, 8  # of each step
GUESS = np.float32(-np.log(320))  # log-prob of a token by a model that knows nothing


def ahead(
    root: Path, *, staleness: int = 1, deterministic: bool = False, order: str = "starting", **settings: Any
) -> Cascade:
    whole = cascade(root)
    settings = {"steps": STEPS, "importance": "truncated", "stale_gap_bound": 1e9, **settings}
    stage = replace(whole.stages[0], **settings)
    rollout = replace(whole.rollout, placement="disaggregated", max_staleness=staleness, deterministic=deterministic)
    return replace(whole, stages=(stage,), rollout=replace(rollout, batch_order=order))


class Killed(BaseException):
    pass


DEATH = EngineDied(-9, (), Path("log"), "")


@dataclass
class Told:
    """What an attempt did: ids in the order in which they were drawn, how many were judged, and what happened when."""

    drawn: list[str] = field(default_factory=list)
    judged: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    learned: float = 0.0


class AheadEngine(ScriptedEngine):
    """The last sample of a batch that is drawn ahead ends when the trainer has begun to learn.

    Dies before it draws the sample named `dies_at`, with the `death` given; a BrokenPassport means that it does not die
    and says another version. Under dynamic filtering, half of the groups of a first draw are all right.
    """

    dies_at, death = "", Killed()

    def __init__(self, tokenizer: Any, told: Told, filtered: bool) -> None:
        super().__init__(tokenizer)
        self.told, self.filtered = told, filtered
        self.learning, self.pending = Event(), dict[str, Rollout]()

    def generate(
        self, requests: Sequence[Request], follow: object = None, finished: Container[str] = ()
    ) -> Iterator[Rollout]:
        fresh = [request for request in requests if request.id not in finished]
        for rollout in super().generate(requests):
            if self.filtered and is_easy(rollout.id):
                rollout = replace(rollout, token_ids=self.answers[0])
            if rollout.id not in finished:
                self.pending[rollout.id] = replace(rollout, logprobs=np.full(len(rollout.token_ids), GUESS))
        for name in list(self.pending):
            version = self.version
            if name == self.dies_at:
                self.dies_at, version = "", self.version + 9
                if not isinstance(self.death, BrokenPassport):
                    raise self.death
            step = name.split("/")[1]
            if fresh and name == fresh[-1].id and step.isdigit() and step != "1":
                assert self.learning.wait(60), "the trainer did not learn while samples were in flight"
                self.learning.clear()
            self.told.drawn.append(name)
            yield replace(self.pending.pop(name), versions=((version, 0),))

    def restart(self) -> None:
        self.told.events.append("restart")

    def lacking(self, version: int) -> dict[int, int]:
        self.told.events.append(f"refit {version} with {len(self.pending)} in flight")
        return super().lacking(version)


def is_easy(name: str) -> bool:
    _, draw, place, *_ = name.split("/")
    return draw.isdigit() and int(place) % 2 == 1


class CountingVerifier(MathVerifier):
    def __init__(self, told: Told) -> None:
        super().__init__()
        self.told = told

    def __call__(self, task: Task, text: str) -> Verdict:
        self.told.judged.append(task.id)
        return super().__call__(task, text)


class AheadSession(Session[GrpoStage]):
    engine_class: type[Any] = AheadEngine
    dies_at, death, told, delays = "", Killed(), Told(), 1

    @contextmanager
    def start_engine(self, nodes: object) -> Iterator[Any]:
        self.engine = self.engine_class(self.tokenizer, self.told, self.stage.dynamic_filtering)
        self.engine.dies_at, self.engine.death = self.dies_at, self.death
        try:
            yield self.engine
        finally:
            self.engine.learning.set()  # what is still being drawn ends with the engine


def attempt(run: RunFolder, dies_at: str = "", death: BaseException | None = None) -> tuple[Told, str]:
    """What one attempt did, and the error that ended it."""
    told, error = Told(), ""
    AheadSession.told, AheadSession.dies_at, AheadSession.death = told, dies_at, death or Killed()
    try:
        with AheadSession(run, run.stage("rl")) as session:
            assert session.zero
            session.zero.judge.makers = {"math": lambda: CountingVerifier(told)}
            _announce(session)
            before = preference(session)
            grpo.run(session)
            told.learned = preference(session) - before
    except (Killed, WeightsGone, Mismatch) as ended:
        error = f"{type(ended).__name__}: {ended}"
    return told, error


def _announce(session: AheadSession) -> None:
    """Lets the engine know when the trainer learns."""
    update = session.trainer.update

    def announced(sequences: list[TrainSequence], *how: Any) -> dict[str, float]:
        session.engine.learning.set()
        return update(sequences, *how)

    session.trainer.update = announced  # type: ignore[method-assign]


@dataclass
class Finished:
    run: RunFolder
    told: Told


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    root = tmp_path_factory.mktemp("ahead")
    with RunFolder.claim(root / "run", ahead(root)) as (run, _):
        ((told, error),) = run_ranks(1, attempt, run)
    assert error == ""
    return Finished(run, told)


def versions(run: RunFolder, step: int) -> set[int]:
    rows = read_samples(run.stage("rl").rollouts(step))
    assert len(rows) == SAMPLES
    return {version for row in rows for version, _ in row["versions"]}


def test_the_engines_draw_the_next_step_while_the_trainer_learns(undisturbed: Finished) -> None:
    """Otherwise the last sample of a step would not have come. New weights come when nothing is in flight."""
    refits = [f"refit {version} with 0 in flight" for version in range(STEPS + 1)]
    assert undisturbed.told.events == refits
    assert len(undisturbed.told.drawn) == len(set(undisturbed.told.drawn)) == STEPS * SAMPLES


def test_samples_are_one_version_old_and_say_so(undisturbed: Finished) -> None:
    assert [versions(undisturbed.run, step) for step in range(1, STEPS + 1)] == [{0}, {0}, {1}, {2}]
    first, *others = undisturbed.run.stage("rl").metrics.rows()
    assert "tme" in first and "age" not in first
    assert all((row["age"], row["age_max"]) == (1.0, 1.0) and "tme" not in row for row in others)


def test_the_samples_of_the_oldest_checkpoint_are_kept(undisturbed: Finished) -> None:
    """Step 4 follows checkpoint 3, and its samples are of weights 2."""
    stage = undisturbed.run.stage("rl")
    assert stage.checkpoint_steps() == [3, 4]
    assert sorted(path.name for path in stage.ledger(0).parent.iterdir()) == ["version_00002"]


def require_replayed(run: RunFolder, step: int) -> None:
    """`cascade replay` finds what the step recorded."""

    def told() -> tuple[int, str]:
        with redirect_stdout(StringIO()) as text:
            return replay.run(RecordedStep.find(run.root, "rl", step)), text.getvalue()

    ((code, text),) = run_ranks(1, told)
    assert f"rl, step {step}: {SAMPLES} samples (train_logprobs)" in text
    assert (code, "all as recorded" in text) == (0, True), text


def test_a_step_of_older_samples_is_replayed(undisturbed: Finished) -> None:
    require_replayed(undisturbed.run, STEPS)


def test_it_learns(undisturbed: Finished) -> None:
    assert undisturbed.told.learned > 1


def require_same(run: RunFolder, expected: RunFolder) -> None:
    found, wanted = run.stage("rl"), expected.stage("rl")
    assert found.metrics.path.read_bytes() == wanted.metrics.path.read_bytes()
    for step in range(1, STEPS + 1):
        assert found.rollouts(step).read_bytes() == wanted.rollouts(step).read_bytes()


def first_of(undisturbed: Finished, group: str) -> str:
    """The id of the first sample of a group."""
    return next(name for name in undisturbed.told.drawn if name.startswith(group))


def require_continued(run: RunFolder, dies_at: str, undisturbed: Finished) -> None:
    """An attempt dies before the first sample of a group; the next one ends as if nothing had happened."""
    name = first_of(undisturbed, dies_at)
    ((first, error),) = run_ranks(1, attempt, run, name)
    assert error.startswith("Killed")
    ((second, error),) = run_ranks(1, attempt, run)
    assert error == ""
    assert name not in first.drawn
    assert sorted(first.drawn + second.drawn) == sorted(undisturbed.told.drawn)
    assert len(first.judged + second.judged) == len(undisturbed.told.judged)
    require_same(run, undisturbed.run)


def test_a_killed_attempt_goes_on_and_draws_and_judges_nothing_twice(undisturbed: Finished, tmp_path: Path) -> None:
    with RunFolder.claim(tmp_path / "run", ahead(tmp_path)) as (run, _):
        require_continued(run, "rl/4/2/", undisturbed)


def test_what_the_first_draw_lacks_comes_from_the_newest_weights(tmp_path: Path) -> None:
    """Two of the four groups of a first draw teach something."""
    folders = [tmp_path / "whole", tmp_path / "killed"]
    for folder in folders:
        folder.mkdir()
    filtered = [ahead(folder, dynamic_filtering=True) for folder in folders]
    with RunFolder.claim(folders[0] / "run", filtered[0]) as (whole, _):
        ((told, error),) = run_ranks(1, attempt, whole)
    assert error == ""
    assert [versions(whole, step) for step in range(1, STEPS + 1)] == [{0}, {0, 1}, {1, 2}, {2, 3}]
    assert [row.get("age") for row in whole.stage("rl").metrics.rows()] == [None, 0.5, 0.5, 0.5]
    assert all(event.endswith("with 0 in flight") for event in told.events)
    with RunFolder.claim(folders[1] / "run", filtered[1]) as (run, _):
        require_continued(run, "rl/3+1/1/", Finished(whole, told))


def test_samples_of_an_engine_that_died_come_from_the_new_weights(undisturbed: Finished, tmp_path: Path) -> None:
    with RunFolder.claim(tmp_path / "run", ahead(tmp_path)) as (run, _):
        ((told, error),) = run_ranks(1, attempt, run, first_of(undisturbed, "rl/3/2/"), DEATH)
    assert error == ""
    assert told.events[2:4] == ["restart", "refit 2 with 4 in flight"]
    assert versions(run, 3) == {1, 2}
    assert 0 < run.stage("rl").metrics.rows()[2]["age"] < 1
    assert sorted(told.drawn) == sorted(undisturbed.told.drawn)


def test_where_the_same_samples_are_promised_a_death_ends_the_attempt(undisturbed: Finished, tmp_path: Path) -> None:
    with RunFolder.claim(tmp_path / "run", ahead(tmp_path, deterministic=True)) as (run, _):
        ((_, error),) = run_ranks(1, attempt, run, first_of(undisturbed, "rl/3/2/"), DEATH)
        assert "Start the run again: it goes on from its checkpoint" in error
        ((_, error),) = run_ranks(1, attempt, run)
    assert error == ""
    require_same(run, undisturbed.run)


def test_samples_that_do_not_hold_are_drawn_again(undisturbed: Finished, tmp_path: Path) -> None:
    with RunFolder.claim(tmp_path / "run", ahead(tmp_path)) as (run, _):
        ((_, error),) = run_ranks(1, attempt, run, first_of(undisturbed, "rl/3/2/"), BrokenPassport())
        assert error.startswith("BrokenPassport: step 3: ")
        assert "rl/3/2/" in error and "version: expected 1 to 2" in error
        assert not [version for version in (1, 2) if run.stage("rl").ledger(version).exists()]
        ((told, error),) = run_ranks(1, attempt, run)
    assert error == ""
    assert first_of(undisturbed, "rl/3/2/") in told.drawn
    assert versions(run, 3) in ({1}, {2})  # by whether checkpoint 2 was complete
