"""Other people's trackers: each step once, the same tracked run after a kill, no failure of theirs is the stage's."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from cascade_rl.rl_stages.run.durable_file import read_json
from cascade_rl.rl_stages.run.run_folder import RunFolder, StageFolder
from cascade_rl.rl_stages.run.step_log import StepLog
from cascade_rl.rl_stages.run.trackers.told_once import ToldOnce
from tests.rl_stages.tiny_cascade import CASCADE


class Memory:
    """A tracker that keeps what it is told; breaks at the steps in `broken`."""

    def __init__(self, told: list[tuple[int, Mapping[str, float]]], known: str | None, broken: set[int]) -> None:
        self.told, self.known, self.broken, self.id = told, known, broken, known or "first"
        self.failed: bool | None = None

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if step in self.broken:
            raise ConnectionError("no route to host")
        self.told.append((step, values))

    def close(self, failed: bool) -> None:
        self.failed = failed


@pytest.fixture
def stage(tmp_path: Path) -> StageFolder:
    with RunFolder.claim(tmp_path / "tiny", CASCADE) as (run, _):
        return run.stage("math_rl")


def attempt(stage: StageFolder, told: list, steps: range, kill: bool = False, broken: set[int] = frozenset()) -> Memory:
    """An attempt at `steps`, with a checkpoint after all but the last one if it is killed."""
    opened: list[Memory] = []

    def make(known: str | None) -> Memory:
        opened.append(Memory(told, known, broken))
        return opened[-1]

    stage.restart()
    log = StepLog(stage).__enter__()
    log.report_to([ToldOnce("memory", stage, make, log.warn)])
    for step in steps:
        with log.phase("update"):
            pass
        log.step(step, {"reward": step / 10}, tokens=7, records=[])
        if not (kill and step == steps[-1]):
            stage.begin_checkpoint(step)
            stage.commit_checkpoint(step)
    log.__exit__(KeyboardInterrupt if kill else None, None, None)
    return opened[-1]


def rewards(told: list[tuple[int, Mapping[str, float]]]) -> list[tuple[int, float]]:
    return [(step, values["reward"]) for step, values in told]


def test_a_step_that_a_killed_attempt_told_is_not_told_again(stage: StageFolder) -> None:
    told: list = []
    first = attempt(stage, told, range(1, 3), kill=True)
    again = attempt(stage, told, range(2, 4))
    assert rewards(told) == [(1, 0.1), (2, 0.2), (3, 0.3)]
    assert (first.known, again.known) == (None, "first")
    assert (first.failed, again.failed) == (True, False)
    assert {"tokens_per_second", "seconds/update"} <= told[0][1].keys()


def test_a_tracker_that_joins_late_is_told_what_it_lacks(stage: StageFolder) -> None:
    attempt(stage, [], range(1, 3))
    (stage.root / "tracked" / "memory.json").unlink()
    told: list = []
    attempt(stage, told, range(3, 4))
    assert rewards(told) == [(1, 0.1), (2, 0.2), (3, 0.3)]


def test_a_tracker_that_fails_is_a_warning_and_the_next_attempt_goes_on(stage: StageFolder) -> None:
    told: list = []
    attempt(stage, told, range(1, 4), broken={2})
    assert rewards(told) == [(1, 0.1)]
    (warning,) = [event for event in stage.events.rows() if event["event"] == "warning"]
    assert warning["detail"] == "memory is told nothing more in this attempt: no route to host"
    attempt(stage, told, range(4, 5))
    assert rewards(told) == [(1, 0.1), (3, 0.3), (4, 0.4)]  # of step 2 it is not known what arrived


def test_a_tracker_that_does_not_open_is_a_warning(stage: StageFolder) -> None:
    def make(_known: str | None) -> Memory:
        raise RuntimeError("no API key")

    with StepLog(stage) as log:
        log.report_to([ToldOnce("wandb", stage, make, log.warn)])
    (warning,) = stage.events.rows()
    assert warning["detail"] == "wandb is told nothing more in this attempt: no API key"


def test_heldout_scores_are_told_at_the_steps_that_they_belong_to(stage: StageFolder) -> None:
    told: list = []
    with StepLog(stage) as log:
        log.report_to([ToldOnce("memory", stage, lambda known: Memory(told, known, set()), log.warn)])
        log.heldout("before", {"math": 0.25})
        stage.begin_checkpoint(2)
        stage.commit_checkpoint(2)
        log.heldout("after", {"math": 0.5})
        log.heldout("after", {"math": 0.5})
    assert told == [(0, {"heldout/math": 0.25}), (2, {"heldout/math": 0.5})]
    assert read_json(stage.root / "tracked" / "memory.json") == {"id": "first", "told": {"heldout": 2}}
