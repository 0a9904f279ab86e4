"""A node's part of a job, without Slurm: what ends an attempt, and what each end is told as."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cascade_rl.engine.cluster.rank_environment import ENGINE_NODES
from cascade_rl.launchers.stage import in_job
from cascade_rl.rl_stages.run.run_folder import RunFolder, StageFolder
from tests.launchers.slurm.fake_cascade import CASCADE
from tests.living import runs
from tests.until import LIMIT_S, until

# a rank: writes its pid, starts a child that outlives it, then does what RANK_DOES says
RANK = """
import os, signal, subprocess, sys, time
from pathlib import Path
child = subprocess.Popen(["sleep", "300"], start_new_session=True)
Path(os.environ["PIDS"]).open("a").write(f"{os.getpid()} {child.pid}\\n")
does = os.environ["RANK_DOES"]
if does == "waits":
    while signal.SIGUSR1 not in signal.sigpending():
        time.sleep(0.02)
    sys.exit(75)
if does == "kills itself":
    # an engine that leaves what it has drawn
    leaves = "import os, pathlib, time; time.sleep(3); pathlib.Path(os.environ['PIDS']).with_name('left').touch()"
    subprocess.Popen([sys.executable, "-c", leaves, "cascade_rl.engine.rollout.server"], start_new_session=True)
    os.kill(os.getpid(), signal.SIGKILL)
if does == "finishes":
    from cascade_rl.rl_stages.run.run_folder import RunFolder
    stage = RunFolder.open(Path(sys.argv[1])).stage(sys.argv[2])
    for step in range(1, stage.config.steps + 1):
        stage.begin_checkpoint(step), stage.commit_checkpoint(step)
    stage.record_scores("before", {"instruction_following": 0.5, "math": 0.5})
    stage.record_scores("after", {"instruction_following": 0.5, "math": float(os.environ["AFTER"])})
    stage.export.mkdir()
    stage.finish()
    sys.exit(0)
sys.exit(int(does))
"""


@pytest.fixture
def stage(tmp_path: Path) -> StageFolder:
    with RunFolder.claim(tmp_path / "run", CASCADE) as (run, _):
        return run.stage("sft")


def start(stage: StageFolder, rank_does: str, after: float = 0.5, head: str = "localhost") -> subprocess.Popen:
    slurm = {"SLURM_JOB_ID": "77", "SLURM_JOB_NUM_NODES": "1", "SLURM_NODEID": "0", "CASCADE_HEAD_NODE": head}
    root = stage.root.parents[1]
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "cascade_rl.launchers.stage.in_job", root, "sft", "--workdir", root),
            *("--nproc-per-node", "1", "--devices", "cpu", "--attempts", "2", "--", sys.executable, "-c", RANK),
        ],
        env={**os.environ, **slurm, "RANK_DOES": rank_does, "PIDS": str(root / "pids"), "AFTER": str(after)},
        stderr=subprocess.PIPE,
        text=True,
    )


def end(process: subprocess.Popen) -> tuple[int, str]:
    _, told = process.communicate(timeout=LIMIT_S)
    return process.returncode, told


def final_text(stage: StageFolder) -> str | None:
    path = stage.logs / "final_77"
    return path.read_text() if path.exists() else None


def test_a_crash_is_not_final_until_it_is_a_loop_and_leaves_no_process(stage: StageFolder) -> None:
    codes = [end(start(stage, "kills itself"))[0] for _ in range(2)]
    assert codes == [137, 137]
    assert (stage.root.parents[1] / "left").exists()
    assert final_text(stage) is None
    pids = [int(pid) for pid in (stage.root.parents[1] / "pids").read_text().split()]
    assert len(pids) == 4 and not any(map(runs, pids))

    code, told = end(start(stage, "kills itself"))
    assert code == 4
    assert final_text(stage) == "2 attempts ended without a checkpoint newer than that of step 0"
    assert "Not queued again" in told
    assert [row["exit_code"] for row in stage.events.rows() if row["event"] == "ended"] == [137, 137]


def test_a_newer_checkpoint_ends_the_count(stage: StageFolder) -> None:
    for _ in range(2):
        stage.record_event("attempt", from_step=0, job="77")
    stage.record_event("attempt", from_step=0, job="an older job")
    stage.begin_checkpoint(1)
    stage.commit_checkpoint(1)
    assert end(start(stage, "1"))[0] == 1


def test_bad_input_is_final(stage: StageFolder) -> None:
    assert end(start(stage, "2"))[0] == 2
    assert final_text(stage) == ""


@pytest.mark.parametrize(("after", "code"), [(0.5, 0), (0.25, 3)])
def test_a_closed_gate_is_final(tmp_path: Path, after: float, code: int) -> None:
    gated = dataclasses.replace(CASCADE.stages[0], gate={"math": 0.1})
    with RunFolder.claim(tmp_path / "run", dataclasses.replace(CASCADE, stages=(gated,))) as (run, _):
        stage = run.stage("sft")
    assert end(start(stage, "finishes", after))[0] == code
    assert final_text(stage) == (
        None if code == 0 else "gate closed: math lost 0.250, allowed 0.100. Change the stage, or what its gate allows"
    )
    assert end(start(stage, "1"))[0] == code  # done before: no rank is started


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_asks_the_ranks_to_save(stage: StageFolder, number: signal.Signals) -> None:
    process = start(stage, "waits")
    pids = stage.root.parents[1] / "pids"
    until(pids.exists)
    process.send_signal(number)
    assert end(process)[0] == 75
    assert final_text(stage) is None


def test_an_unfit_node_is_named(stage: StageFolder) -> None:
    code, told = end(start(stage, "0", head="no-such-host.invalid"))
    assert code == 5
    (row,) = (json.loads(line) for path in stage.logs.glob("node_*.jsonl") for line in path.read_text().splitlines())
    assert f"node {row['node']}: expected the first node's name to resolve here" in told
    assert row["problems"] and row["free"]["run_folder"] > 0
    assert not (stage.root.parents[1] / "pids").exists()


@pytest.mark.parametrize(
    ("nodes", "flags", "node", "cards", "keeper"),
    [
        (2, (), 1, 8, None),
        (1, ("--engine-cards", "2"), 0, 10, None),
        (3, ("--engine-nodes", "2", "--engine-cards", "4"), 0, 8, None),
        (3, ("--engine-nodes", "2", "--engine-cards", "4"), 2, 4, 1),
    ],
)
def test_a_node_has_ranks_or_a_keeper(
    monkeypatch: pytest.MonkeyPatch, nodes: int, flags: tuple[str, ...], node: int, cards: int, keeper: int | None
) -> None:
    """Ranks are told how many nodes have none; a keeper meets them at their store."""
    started: list[list[str]] = []
    monkeypatch.setattr("torch.distributed.run.main", started.append)
    monkeypatch.setattr(subprocess, "call", lambda command: started.append(command) or 0)
    monkeypatch.delenv(ENGINE_NODES, raising=False)
    slurm = {"SLURM_JOB_ID": "77", "SLURM_JOB_NUM_NODES": str(nodes), "SLURM_NODEID": str(node)}
    for name, value in (slurm | {"CASCADE_HEAD_NODE": "head", ENGINE_NODES: ""}).items():
        monkeypatch.setenv(name, value)
    own = ("--workdir", "/", "--nproc-per-node", "8", "--devices", "gpu", "--attempts", "3", *flags)
    options, command = in_job._parse(["/run", "sft", *own, "--", "rank"])
    assert (in_job._cards(options), in_job._keeper(options)) == (cards, keeper)
    assert in_job._run(options, command) == 0
    (found,) = started
    if keeper is None:
        assert found[found.index("--nnodes") + 1] == str(nodes - options.engine_nodes)
        assert os.environ[ENGINE_NODES] == str(options.engine_nodes)
    else:
        assert found[1:] == ["-m", "cascade_rl.launchers.stage.keep_node", "/run", str(keeper), "head", "20077"]
