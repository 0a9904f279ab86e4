"""`cascade status` and `cascade compare`, on run folders as a launcher leaves them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from cascade_rl.launchers.cli import compare
from cascade_rl.launchers.cli.compare import differences, scored
from cascade_rl.launchers.report import status
from cascade_rl.launchers.report.score_table import score_line
from cascade_rl.launchers.report.status import is_claimed, scores_table, state, status_table
from cascade_rl.rl_stages.config.base import Evaluation
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.reward_model_stage import RewardModelStage
from cascade_rl.rl_stages.config.text import override
from cascade_rl.rl_stages.run.run_folder import RunFolder
from tests.rl_stages.run.test_run_folder import CASCADE, keep_step


def made(root: Path, cascade: Cascade, after: float) -> RunFolder:
    """A run whose first stage is done and whose second has taken a step."""
    with RunFolder.claim(root, cascade) as (run, _):
        sft = run.stage("sft")
        for step in range(1, sft.config.steps + 1):
            keep_step(sft, step)
        sft.record_scores("before", {"math": 0.25})
        sft.record_scores("after", {"math": after})
        sft.export.mkdir()
        sft.finish()
        run.record()
        return run


def text(table: Table) -> str:
    console = Console(width=160)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


def test_a_state_for_every_stage(tmp_path: Path) -> None:
    run = made(tmp_path / "tiny", CASCADE, after=0.5)
    assert [state(run, stage) for stage in run.stages] == ["done", "ready"]
    run.stage("rl").record_event("attempt", from_step=0)
    assert state(run, run.stage("rl")) == "interrupted"
    shown = text(status_table(run))
    assert "3/3" in shown and "0/4" in shown
    assert text(scores_table(run)).splitlines()[-2].split() == ["math", ".500"]


@pytest.mark.parametrize(
    ("end", "live", "expected"),
    [
        (None, (), "interrupted"),
        (None, ("rl",), "running"),
        ({"exit_code": 75, "message": ""}, (), "interrupted"),
        ({"exit_code": 1, "message": "ValueError: no"}, (), "failed"),
        ({"exit_code": 1, "message": "ValueError: no"}, ("rl",), "running"),  # its job is queued again
        ({"exit_code": 2}, (), "failed"),  # as versions of before wrote it
    ],
)
def test_a_stage_that_has_begun_runs_or_failed_or_was_interrupted(
    tmp_path: Path, end: dict[str, Any] | None, live: Sequence[str], expected: str
) -> None:
    run = made(tmp_path / "tiny", CASCADE, after=0.5)
    run.stage("rl").record_event("attempt", from_step=0)
    if end:
        run.stage("rl").record_event("ended", **end)
    assert state(run, run.stage("rl"), live) == expected


def test_why_a_stage_failed_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made(tmp_path / "tiny", CASCADE, after=0.5)
    run.stage("rl").record_event("attempt", from_step=0)
    run.stage("rl").record_event("ended", exit_code=1, message="ValueError: [1] is no reward")
    assert status.run(run.root) == 0
    assert "02_rl failed: ValueError: [1] is no reward\n" in capsys.readouterr().out


def test_alerts_and_the_time_that_is_left_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made(tmp_path / "tiny", CASCADE, after=0.5)
    rl = run.stage("rl")
    for step in range(1, 21):
        rl.metrics.append({"step": step - 17, "length": 10.0 * step})
    for seconds in (100.0, 190.0):
        rl.events.append({"event": "step", "time": seconds, "step": 3, "tokens": 1, "seconds": {}})
    assert status.run(run.root) == 0
    told = capsys.readouterr().out
    assert "1 min 30 s" in told and "time left: about 1 min 30 s\n" in told
    assert (
        "02_rl: length rises: mean 155 over the last 10 steps, 55 over the first 10. See docs/symptoms/length" in told
    )


def test_a_run_that_only_fine_tunes_has_no_table_of_scores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alone = replace(CASCADE, stages=CASCADE.stages[:1], evaluation=Evaluation())
    with RunFolder.claim(tmp_path / "tiny", alone) as (run, _):
        sft = run.stage("sft")
        for step, loss in ((0, 4.0), (2, 3.0), (3, 2.5)):
            sft.record_step(step, {"validation_loss": loss}, {}, 0)
    assert status.run(run.root) == 0
    told = capsys.readouterr().out
    assert "01_sft" in told and "held-out" not in told
    assert str(score_line(run.stage("sft").summary())) == "validation loss 4.000 -> 2.500"


def test_an_attempt_runs_while_its_launcher_is_at_work(tmp_path: Path) -> None:
    with RunFolder.claim(tmp_path / "tiny", CASCADE) as (run, _):
        run.stage("sft").record_event("attempt", from_step=0)
        assert state(run, run.stage("sft")) == "running"
    assert state(run, run.stage("sft")) == "interrupted"


def test_a_reward_model_has_a_score_of_its_own_and_no_other(tmp_path: Path) -> None:
    judge = RewardModelStage(name="judge", domain="preference", data=("generate:rlhf",), steps=1, token_budget=64)
    with RunFolder.claim(tmp_path / "tiny", replace(CASCADE, stages=(*CASCADE.stages, judge))) as (run, _):
        stage = run.stage("judge")
        stage.record_scores("before", {"preference": 0.5})
        stage.record_scores("after", {"preference": 0.75})
    math, preference = text(scores_table(run)).splitlines()[-3:-1]
    assert (math.split(), preference.split()) == (["math"], ["preference", ".750"])


def test_a_stage_waits_for_its_parent(tmp_path: Path) -> None:
    with RunFolder.claim(tmp_path / "tiny", CASCADE) as (run, _):
        assert [state(run, stage) for stage in run.stages] == ["ready", "waits for sft"]


def test_a_closed_gate_is_a_state(tmp_path: Path) -> None:
    gated = RunFolder(tmp_path / "tiny", gated_cascade())
    made(tmp_path / "tiny", CASCADE, after=0.125)
    assert state(gated, gated.stage("sft")) == "gate closed"


def gated_cascade() -> Cascade:
    return replace(CASCADE, stages=(replace(CASCADE.stages[0], gate={"math": 0.1}), CASCADE.stages[1]))


def test_a_live_launcher_is_seen(tmp_path: Path) -> None:
    with RunFolder.claim(tmp_path / "tiny", CASCADE):
        assert is_claimed(tmp_path / "tiny")
    assert not is_claimed(tmp_path / "tiny")


def test_two_runs_differ_in_settings_and_scores(tmp_path: Path) -> None:
    one = made(tmp_path / "one", CASCADE, after=0.5)
    other = made(tmp_path / "other", override(CASCADE, ["sft.steps=2", "name=other"]), after=0.75)
    assert dict(differences(one, other)) == {"name": ("tiny", "other"), "sft.steps": (3, 2)}
    assert list(scored(one, other)) == [("sft", "math", 0.5, 0.75)]
    assert "+0.250" in text(compare.scores_table(one, other))
