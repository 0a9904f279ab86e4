"""The launcher as a person uses it, with stand-in stages: `nemo-run FILE`, failures, signals, going on."""

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cascade_rl.launchers.local.run_local import _tee
from cascade_rl.rl_stages.run.durable_file import JsonLines
from tests.living import runs
from tests.until import LIMIT_S, until

HERE = Path(__file__).parents[1]
LAUNCHER = HERE / "fake_launcher.py"
NEMO_RUN = (sys.executable, "-m", "cascade_rl.launchers.cli.launch")


def start(folder: Path, *arguments: str | Path, **env: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*NEMO_RUN, *map(str, arguments)],
        cwd=folder,
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # a shell makes its background jobs, and a CI run may be one, ignore Ctrl-C
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def nemo_run(folder: Path, *arguments: str | Path, **env: str) -> tuple[int, str, str]:
    process = start(folder, *arguments, **env)
    out, err = process.communicate(timeout=LIMIT_S)
    return process.returncode, out, err


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("finished")
    code, out, err = nemo_run(folder, LAUNCHER)
    assert (code, err) == (0, "")
    return folder, out


def test_all_stages_run_and_the_scores_are_shown(finished: tuple[Path, str]) -> None:
    folder, out = finished
    assert "01_sft: starting: 3 steps of 64 sequences = 192 sequences; micro-batches of 512 tokens" in out
    assert "02_math_rl: done in" in out
    assert "math 0.125 -> 0.500 (+0.375)" in out
    assert out.endswith("Run folder: runs/fake\n")
    summary = json.loads((folder / "runs/fake/summary.json").read_text())
    assert [(stage["name"], stage["steps"]) for stage in summary["stages"]] == [("sft", 3), ("math_rl", 6)]
    assert summary["stages"][1]["tme_max"] == 1.000006


def test_a_finished_run_is_skipped(finished: tuple[Path, str]) -> None:
    folder, _ = finished
    code, out, _ = nemo_run(folder, LAUNCHER)
    assert code == 0
    assert "01_sft: done before, skipped\n02_math_rl: done before, skipped\n" in out
    assert "step 1" not in out


def test_another_configuration_on_the_same_folder_is_refused(finished: tuple[Path, str]) -> None:
    folder, _ = finished
    code, out, err = nemo_run(folder, LAUNCHER, "seed=7")
    assert (code, out) == (2, "")
    assert "seed = 1, now 7" in err


def test_a_changed_stage_runs_again_and_nothing_else(tmp_path: Path) -> None:
    assert nemo_run(tmp_path, LAUNCHER)[0] == 0
    code, out, err = nemo_run(tmp_path, LAUNCHER, "math_rl.optimizer.lr=1e-5", "--rerun", "math_rl")
    assert (code, err) == (0, "")
    said = (
        "set aside 02_math_rl (done): math_rl.optimizer.lr 3e-06 -> 1e-05\n01_sft: done before, skipped\n02_math_rl: s"
    )
    assert said in out
    assert "02_math_rl step 6\n" in out


def test_a_finished_stage_goes_on_to_more_steps(tmp_path: Path) -> None:
    assert nemo_run(tmp_path, LAUNCHER)[0] == 0
    code, out, err = nemo_run(tmp_path, LAUNCHER, "math_rl.steps=8", "math_rl.token_budget=256")
    assert (code, err) == (0, "")
    assert (
        "02_math_rl (done): math_rl.steps 6 -> 8; math_rl.token_budget 512 -> 256 (goes on from there)\n"
        "01_sft: done before, skipped\n02_math_rl: going on from step 6 of 8\n02_math_rl step 7\n"
    ) in out


def test_a_stage_alone_needs_what_it_builds_on(tmp_path: Path) -> None:
    code, _, err = nemo_run(tmp_path, LAUNCHER, "--only", "math_rl")
    assert code == 2
    assert "02_math_rl: expected the stages that it builds on to be done, found sft unfinished" in err
    code, out, _ = nemo_run(tmp_path, LAUNCHER, "--only", "sft")
    assert (code, "math_rl step" in out) == (0, False)
    code, out, _ = nemo_run(tmp_path, LAUNCHER, "--from", "math_rl")
    assert (code, "01_sft" in out, "02_math_rl step 6" in out) == (0, False, True)


def test_a_closed_gate_stops_the_cascade(tmp_path: Path) -> None:
    code, out, _ = nemo_run(tmp_path, LAUNCHER, FAKE_MATH_AFTER="0")
    assert code == 3
    assert "gate closed: math lost 0.125, allowed 0.100" in out
    lineage = json.loads((tmp_path / "runs/fake/lineage.json").read_text())
    assert [verdict["passed"] for verdict in lineage["stages"][0]["gate"]] == [False]
    code, out, _ = nemo_run(tmp_path, LAUNCHER)
    assert (code, "gate closed" in out) == (3, True)  # a stage that is done is judged again
    code, out, _ = nemo_run(tmp_path, LAUNCHER, "sft.gate.math=0.3")
    assert (code, "01_sft: done before, skipped" in out) == (0, True)


def test_a_setting_reaches_the_stage_and_its_run_folder(tmp_path: Path) -> None:
    code, _, _ = nemo_run(tmp_path, LAUNCHER, "--runs", "elsewhere", "math_rl.steps=2", "name=other", "nproc=1")
    assert code == 0
    summary = json.loads((tmp_path / "elsewhere/other/summary.json").read_text())
    assert summary["stages"][1]["steps"] == 2


@pytest.mark.parametrize(
    ("fail", "code", "told"),
    [
        ("0:3:2", 2, "rank 0 ended with exit code 2"),
        ("1:3:5", 5, "rank 1 ended with exit code 5\nrank 1 fails at step 3"),
        ("1:3:kill", 137, "rank 1 was killed by SIGKILL"),
    ],
)
def test_a_failed_rank_ends_all_and_gives_its_exit_code(tmp_path: Path, fail: str, code: int, told: str) -> None:
    pids = tmp_path / "pids"
    returned, out, _ = nemo_run(tmp_path, LAUNCHER, FAKE_FAIL=fail, FAKE_PIDS=str(pids), FAKE_STEP_S="0.05")
    assert returned == code
    assert told in out
    assert f"failed with exit code {code}" in out
    events = JsonLines(tmp_path / "runs/fake/stages/02_math_rl/events.jsonl").rows()
    (ended,) = (event for event in events if event["event"] == "ended")
    assert ended["message"] == f"{told.partition(chr(10))[0]}: rank {fail[0]} fails at step 3"
    assert "01_sft: done in" in out
    assert not any(runs(int(pid)) for pid in pids.read_text().split())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_stopped_launcher_leaves_no_rank_and_goes_on_later(
    tmp_path: Path, finished: tuple[Path, str], number: signal.Signals, code: int
) -> None:
    pids = tmp_path / "pids"
    process = start(tmp_path, LAUNCHER, FAKE_FAIL="0:3:hang", FAKE_PIDS=str(pids))
    until((tmp_path / "runs/fake/stages/02_math_rl/checkpoints/step_00002").exists)
    process.send_signal(number)
    process.wait(timeout=LIMIT_S)
    assert process.returncode == code
    ranks = [int(pid) for pid in pids.read_text().split()]
    until(lambda: not any(runs(pid) for pid in ranks))

    returned, out, _ = nemo_run(tmp_path, LAUNCHER)
    assert returned == 0
    assert "01_sft: done before, skipped" in out
    assert "02_math_rl: going on from step 2 of 6\n02_math_rl step 3\n" in out
    metrics = "runs/fake/stages/02_math_rl/metrics.jsonl"
    assert (tmp_path / metrics).read_bytes() == (finished[0] / metrics).read_bytes()


def test_a_second_launcher_is_refused(tmp_path: Path) -> None:
    first = start(tmp_path, LAUNCHER, FAKE_STEP_S="600")
    until(lambda: (tmp_path / "runs/fake/cascade.yaml").exists())
    code, out, err = nemo_run(tmp_path, LAUNCHER)
    first.terminate()
    first.communicate(timeout=LIMIT_S)
    assert (code, out) == (2, "")
    assert f"another launcher (pid {first.pid}) is at work here" in err


def test_the_words_of_rank_0_reach_the_terminal_when_its_log_has_no_room(capfd: pytest.CaptureFixture[str]) -> None:
    """Found on a full disk, where the log took the message that the disk is full with it."""
    _tee(io.BytesIO(b"No space left\nMake room\n"), Path("/dev/full"))
    assert capfd.readouterr().err == "No space left\nMake room\n"
