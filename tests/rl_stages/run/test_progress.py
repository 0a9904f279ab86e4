"""What a person sees of a step and of a stage."""

from io import StringIO

import pytest
from rich.console import Console

from cascade_rl.launchers.report.score_table import score_line, score_table
from cascade_rl.rl_stages.run import progress
from cascade_rl.rl_stages.run.pace import duration
from cascade_rl.rl_stages.run.progress import Progress
from cascade_rl.rl_stages.run.run_folder import StageSummary

SUMMARY = StageSummary("if_rl", "if", {"if": 0.35, "math": 0.2}, {"if": 0.6125, "math": 0.15}, 25, 183.2, 1.0, 1.0)


def plain() -> Console:
    return Console(file=StringIO(), width=80, highlight=False)


def shown(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_a_step_is_one_plain_line_without_a_terminal() -> None:
    console = plain()
    with Progress("02_if_rl", 25, console) as progress:
        with progress.phase("generation", total=2) as phase:
            phase.advance(2)
        metrics = {"tme": 1.0000031, "reward": 0.4125, "length": 17.25, "unshown": 3.0}
        progress.step(3, metrics, {"generation": 3.0, "update": 1.0}, tokens=8000)
    assert shown(console) == (
        "02_if_rl   3/25  reward 0.412  length 17.2  tme 1.000003  2,000 tok/s  generation 3.0s update 1.0s\n"
    )


def test_a_step_says_how_much_scoring_generation_hid() -> None:
    console = plain()
    with Progress("02_if_rl", 25, console) as progress:
        progress.step(3, {}, {"generation": 3.0, "reward": 1.0}, tokens=8000, reward_overlapped_s=2.34)
    assert shown(console).endswith("generation 3.0s reward 1.0s (reward overlapped 2.3s)\n")


def test_from_the_second_step_on_a_line_says_how_long_the_others_take(monkeypatch: pytest.MonkeyPatch) -> None:
    console, clock = plain(), iter([100.0, 190.0, 340.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with Progress("02_if_rl", 63, console) as shown_progress:
        for step in (1, 2, 3):
            shown_progress.step(step, {}, {"update": 1.0}, tokens=1)
    told = [row.partition("update 1.0s")[2] for row in shown(console).splitlines()]
    assert told == ["", "  1 h 31 min left", "  2 h 0 min left"]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (59.4, "59 s"), (60, "1 min 0 s"), (3599, "59 min 59 s"), (93_600, "1 d 2 h")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_terminal_shows_the_phase_at_work() -> None:
    console = Console(file=StringIO(), width=80, force_terminal=True)
    with Progress("02_if_rl", 25, console) as progress, progress.phase("generation", total=2048) as phase:
        phase.advance(312)
    assert "\x1b[" in shown(console)


def test_scores_before_after_and_gain() -> None:
    console = plain()
    console.print(score_table(SUMMARY))
    lines = shown(console).splitlines()
    assert "if_rl (25 steps, 183 s)" in lines[1]
    assert [cell.strip() for cell in lines[3].strip("│").split("│")] == ["if", "0.350", "0.613", "+0.263"]
    assert [cell.strip() for cell in lines[4].strip("│").split("│")] == ["math", "0.200", "0.150", "-0.050"]
    assert score_line(SUMMARY).plain == "if 0.350 -> 0.613 (+0.263), math 0.200 -> 0.150 (-0.050)"
