"""One step told to the metrics file, the event file, TensorBoard, the sample file and the terminal."""

import time
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cascade_rl.engine.core.rollouts import Outcome
from cascade_rl.rl_stages.run.run_folder import RunFolder, StageFolder
from cascade_rl.rl_stages.run.sample_record import SampleRecord, read_samples
from cascade_rl.rl_stages.run.step_log import StepLog
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


def test_a_step_without_samples_writes_no_sample_file(stage: StageFolder) -> None:
    with StepLog(stage) as log:
        with log.phase("update"):
            pass
        log.step(1, {"loss": 0.5}, tokens=7, records=[])
    assert not stage.rollouts(1).exists()
