"""`cascade doctor`: the tier in use, and graders that prove themselves."""

import os
import re

import pytest

from cascade_rl.launchers.cli import doctor
from cascade_rl.rl_stages.rewards.swe import grading
from cascade_rl.rl_stages.sandbox.outside.attacks import ATTACKS
from cascade_rl.rl_stages.sandbox.outside.probe import probe


@pytest.fixture(autouse=True)
def _one_attack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "ATTACKS", {"sockets": ATTACKS["sockets"]})


@pytest.mark.sandbox
def test_tier_grades_and_attacks(capfd: pytest.CaptureFixture[str]) -> None:
    assert doctor.run() == 0
    told = capfd.readouterr().out
    assert f"sandbox: {probe()}: works\n" in told
    assert re.search(r"attack: Landlock \d+ of Linux .*, as .*: sockets: contained\n", told)
    user = doctor.ANOTHER if os.geteuid() == 0 else os.geteuid()
    assert re.search(rf"attack: .*as user {user}: (sockets: contained|not tried: .*)\n", told)
    assert "attack: Landlock 1, as of Linux 5.13, as " in told and "NOT CONTAINED" not in told
    assert "grading: golden patch: score 1, as expected; wrong patch: score 0, wrong: test_f.py::" in told


@pytest.mark.process
@pytest.mark.skipif(os.geteuid() != 0, reason="another user is tried only by root")
@pytest.mark.parametrize(("found", "escaped"), [(True, True), (False, False)])
def test_what_escapes_as_another_user_counts(
    found: bool, escaped: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "_tell_tiers", lambda: print(f"as user {os.geteuid()}") or found)
    assert doctor._tell_tiers_as_another() is escaped
    assert re.search(rf"user {doctor.ANOTHER}(: not tried: .*)?\n", capfd.readouterr().out)


@pytest.mark.sandbox
def test_a_box_that_cannot_grade_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(grading, "_RUNNER", "import no_such_module")
    assert doctor.run() == 1
    assert "grading: golden patch: no score, expected pytest to start in the sandbox of " in capsys.readouterr().out
