"""How long a run still takes, from the times at which its steps ended."""

import json
from pathlib import Path

from cascade_rl.launchers.report.time_left import TimeLeft
from cascade_rl.rl_stages.run.run_folder import RunFolder, StageFolder
from tests.launchers.report.report_run import cascade


def made(stage: StageFolder, *attempts: list[float]) -> None:
    """One list of times a step for each attempt; the last one has the stage's metrics."""
    events = [event for times in attempts for event in _attempt(times)]
    stage.events.path.write_text("".join(f"{json.dumps(event)}\n" for event in events))
    rows = [{"step": step} for step, _ in enumerate(attempts[-1], start=1)]
    stage.metrics.path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def _attempt(times: list[float]) -> list[dict[str, object]]:
    steps = [{"event": "step", "time": time, "step": step} for step, time in enumerate(times, start=1)]
    return [{"event": "attempt", "time": times[0] - 50, "from_step": 0}, *steps]


def left(root: Path, **attempts: list[list[float]]) -> TimeLeft:
    with RunFolder.claim(root / "run", cascade(steps=12)) as (run, _):
        for name, times in attempts.items():
            made(run.stage(name), *times)
        return TimeLeft.of(run)


def test_a_stage_goes_on_at_its_pace_and_others_at_that_of_their_kind(tmp_path: Path) -> None:
    found = left(tmp_path, if_rl=[[100, 110, 120]], math_rl=[[200, 230]])
    own = {"if_rl": 9 * 10, "math_rl": 10 * 30}
    assert found.stages == {**own, "code_teacher": 12 * 20, "swe_rl": 12 * 20}
    assert found.unknown == ("sft", "mopd")
    assert str(found) == "about 14 min 30 s, without sft, mopd"


def test_only_the_last_steps_count_and_no_time_between_attempts(tmp_path: Path) -> None:
    slower = [[0, 1000, *range(1010, 1110, 10)]]  # a first step of 1,000 s, then ten of 10 s
    assert left(tmp_path / "a", if_rl=slower).stages["if_rl"] == 0 * 10
    assert left(tmp_path / "b", if_rl=[[0, 20, 40], [5000]]).stages["if_rl"] == 11 * 20


def test_nothing_is_said_of_a_run_that_has_not_begun(tmp_path: Path) -> None:
    assert str(left(tmp_path)) == ""
