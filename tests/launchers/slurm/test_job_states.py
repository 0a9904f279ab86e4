"""What Slurm says about jobs, played by a stand-in, and when a job counts as ended."""

from collections.abc import Iterator

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.launchers.slurm import job_states
from cascade_rl.launchers.slurm.job_states import JobState


def play(monkeypatch: pytest.MonkeyPatch, *states: str) -> None:
    told: Iterator[str] = iter(states)
    monkeypatch.setattr(job_states, "state_of", lambda _: JobState(next(told)))


def changes(names: dict[str, str]) -> list[str]:
    return [change[1].state for change in job_states.wait(names, poll_s=0) if change]


def test_a_job_has_ended_only_when_its_end_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that is queued again is NODE_FAIL or FAILED for a moment."""
    play(
        monkeypatch, "PENDING", "RUNNING", "RUNNING", "NODE_FAIL", "NODE_FAIL", "PENDING", "RUNNING", *["COMPLETED"] * 3
    )
    assert changes({"sft": "1"}) == ["PENDING", "RUNNING", "PENDING", "RUNNING", "COMPLETED"]


@pytest.mark.process
def test_the_controllers_answer_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    stub = tmp_path / "scontrol"
    stub.write_text("#!/bin/sh\necho 'JobId=3 JobState=RUNNING Reason=None Restarts=2 NodeList=node[1-2] NumNodes=2'\n")
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    found = job_states.state_of("3")
    assert found == JobState("RUNNING", "", "node[1-2]", 2)
    assert str(found) == "running on node[1-2], queued again 2 times"


@pytest.mark.process
def test_a_machine_without_slurm_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UserError, match="expected Slurm's commands on PATH, found no 'squeue'"):
        job_states.live_jobs("x.")
