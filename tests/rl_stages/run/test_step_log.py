"""One step told to the metrics file, the event file, TensorBoard, the sample file and the terminal."""

import errno
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cascade_rl.engine.core.rollouts import Outcome
from cascade_rl.rl_stages.run import step_log
from cascade_rl.rl_stages.run.run_folder import RunFolder, StageFolder
from cascade_rl.rl_stages.run.sample_record import SampleRecord, read_samples, write_samples
from cascade_rl.rl_stages.run.step_log import StepLog
from cascade_rl.rl_stages.training_session import TrainingSession
from tests.rl_stages.tiny_cascade import CASCADE

RECORD = SampleRecord(
    id="a",
    task_id="math-1",
    domain="math",
    prompt_ids=np.array([1, 2]),
    token_ids=np.array([3]),
    rollout_logprobs=np.array([-1], np.float32),
    train_logprobs=np.array([-1], np.float32),
    loss_mask=np.array([True]),
    reward=1.0,
    advantage=0.5,
    outcome=Outcome.COMPLETED,
    finish="stop",
    versions=((0, 0),),
    text="7",
)


def take(log: StepLog, step: int) -> None:
    with log.phase("update"):
        pass
    log.step(step, {"reward": 0.5}, tokens=7, records=[RECORD])


@pytest.fixture
def stage(tmp_path: Path) -> StageFolder:
    with RunFolder.claim(tmp_path / "tiny", CASCADE) as (run, _):
        return run.stage("math_rl")


def test_everybody_is_told(stage: StageFolder, capsys: pytest.CaptureFixture[str]) -> None:
    with StepLog(stage) as log:
        with log.phase("generation", total=1):
            time.sleep(0.01)
        log.step(1, {"reward": 0.5}, tokens=7, records=[RECORD])
    assert stage.metrics.rows() == [{"step": 1, "reward": 0.5}]
    (event,) = stage.events.rows()
    assert (event["event"], event["step"], event["tokens"]) == ("step", 1, 7)
    assert event["seconds"]["generation"] >= 0.01
    assert [row["id"] for row in read_samples(stage.rollouts(1))] == ["a"]
    assert "03_math_rl  1/2  reward 0.500" in capsys.readouterr().out
    (scalar,) = EventAccumulator(str(stage.root / "tensorboard")).Reload().Scalars("reward")
    assert (scalar.step, scalar.value) == (1, 0.5)


def test_clocks_add_up_inside_a_step_and_start_anew_in_the_next(stage: StageFolder) -> None:
    with StepLog(stage) as log:
        for _ in range(2):
            with log.phase("update"):
                time.sleep(0.02)
        log.reward_overlapped_s += 1.5
        log.step(1, {"reward": 0.5}, tokens=7, records=[])
        with log.phase("refit"):
            pass
        log.step(2, {"reward": 0.5}, tokens=7, records=[])
    assert [event["reward_overlapped_s"] for event in stage.events.rows()] == [1.5, 0.0]
    first, second = (event["seconds"] for event in stage.events.rows())
    assert first["update"] >= 0.04
    assert set(second) == {"refit"}


def test_a_step_does_not_wait_for_its_samples_and_what_must_not_outlive_them_does(
    stage: StageFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, allowed = threading.Event(), threading.Event()

    def slow(path: Path, records: Sequence[SampleRecord]) -> None:
        begun.set()
        assert allowed.wait(60)
        write_samples(path, records)

    monkeypatch.setattr(step_log, "write_samples", slow)
    with StepLog(stage) as log:
        take(log, 1)
        assert begun.wait(60)
        assert stage.metrics.rows() == [{"step": 1, "reward": 0.5}]
        assert not stage.rollouts(1).exists()
        threading.Timer(0.05, allowed.set).start()
        log.settle()
        assert [row["id"] for row in read_samples(stage.rollouts(1))] == ["a"]


def test_the_last_samples_are_on_disk_when_the_log_is_closed(stage: StageFolder) -> None:
    with StepLog(stage) as log:
        for step in (1, 2):
            take(log, step)
    assert stage.rollouts(1).exists()
    assert stage.rollouts(2).exists()


def test_samples_that_cannot_be_written_end_the_next_step(stage: StageFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, records: Sequence[SampleRecord]) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(step_log, "write_samples", full)
    with StepLog(stage) as log:
        take(log, 1)
        with pytest.raises(OSError, match="No space left"):
            take(log, 2)
    assert [row["step"] for row in stage.metrics.rows()] == [1]


def test_a_checkpoint_is_complete_only_when_the_samples_of_its_steps_are_on_disk() -> None:
    told, layout = mock.Mock(), mock.Mock(rollout=mock.Mock(max_staleness=2))
    TrainingSession._commit(mock.Mock(log=told.log, folder=told.folder, layout=layout), 3)
    assert told.mock_calls == [mock.call.log.settle(), mock.call.folder.commit_checkpoint(3, 2)]


def test_a_step_without_samples_writes_no_sample_file(stage: StageFolder) -> None:
    with StepLog(stage) as log:
        with log.phase("update"):
            pass
        log.step(1, {"loss": 0.5}, tokens=7, records=[])
    assert not stage.rollouts(1).exists()
