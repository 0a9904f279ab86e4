"""The literal commands on a real Slurm of four virtual nodes, with what clusters do to jobs."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil
import pytest

from tests.launchers.slurm.virtual_slurm import REPOSITORY, WITHOUT, VirtualSlurm, kill, virtual_slurm

pytestmark = pytest.mark.skipif(os.environ.get(WITHOUT) == "1", reason=f"{WITHOUT}=1")

NEMO_RUN = Path(sys.executable).with_name("nemo-run")
FAKE = Path(__file__).with_name("fake_cascade.py")
LIMIT_S = 900
VERY_SMALL = (
    "evaluation.prompts_per_domain=1",
    "evaluation.max_new_tokens=8",
    "evaluation.max_infrastructure_failures=1",  # a box inside a virtual container cannot be closed
    "rollout.engines=2",
    "sft.steps=2",
    "sft.sequences_per_step=8",
    "sft.checkpoint_every=1",
    "if_rl.steps=8",
    "if_rl.prompts_per_step=4",
    "if_rl.rollouts_per_prompt=2",
    "if_rl.sampling.max_new_tokens=8",
    "if_rl.checkpoint_every=1",
)
PROFILE = """
[ci]
partition = "batch"
account = "ci"
gpus_per_node = 1
gpus = false
time = "02:00:00"
signal = "USR1@60"
memory = "1000"
attempts_without_progress = {attempts}
env = {{ WITH_SPACES = "a b $HOME" }}
{container}
"""
CONTAINER = """
container_image = "registry.example#team/cascade:1"
mounts = ["{repository}:{repository}", "{folder}:{folder}"]
python = "{python}"
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VirtualSlurm]:
    shared = tmp_path_factory.mktemp("slurm")
    with virtual_slurm(shared / "cluster", shared) as cluster:
        yield cluster


class Launch:
    """`nemo-run LAUNCHER --cluster ci ...` in a folder that the nodes see; ends with the block."""

    def __init__(self, slurm: VirtualSlurm, name: str, launcher: Path, *arguments: str, profile: str, **env: str):
        self.folder = slurm.shared / name
        self.folder.mkdir()
        (self.folder / "clusters.toml").write_text(profile)
        self.process = subprocess.Popen(
            [NEMO_RUN, launcher, "--cluster", "ci", *arguments],
            cwd=self.folder,
            env={**slurm.environment, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def wait_for[T](self, find: Callable[[], T | None]) -> T:
        """What `find` returns, once it finds something."""
        deadline = time.monotonic() + LIMIT_S
        while not (found := find()):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(self.finish()[1])
            time.sleep(0.05)
        return found

    def finish(self) -> tuple[int, str]:
        try:
            out, _ = self.process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, _ = self.process.communicate()
        return self.process.returncode, out


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def attempts(stage: Path) -> list[dict]:
    return [row for row in rows(stage / "events.jsonl") if row["event"] == "attempt"]


def rank_process(folder: Path, stage: str, rank: int) -> tuple[int, str] | None:
    """Pid and node of a rank of a stage's job, wherever it runs."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (
                f"run_stage\0{folder}" in (process / "cmdline").read_text()
                and f"\0{stage}\0" in (process / "cmdline").read_text()
            ):
                pairs = (pair.partition("=") for pair in (process / "environ").read_text().split("\0"))
                found = {name: value for name, _, value in pairs}
                if found.get("RANK") == str(rank):
                    return int(process.name), found["SLURMD_NODENAME"]
    return None


def keeper_of(folder: Path) -> psutil.Process | None:
    """Of the node of a stage's job that has an engine and no rank, once it has started the engine."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if f"stage.keep_node {folder} " in " ".join(process.cmdline()) and process.children():
                return process
    return None


def left_over(folder: Path) -> list[str]:
    """Command lines of processes that work in a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (process / "cmdline").read_text().replace("\0", " ")
            if str(folder) in command and (process / "stat").read_text().rpartition(") ")[2][0] != "Z":
                found.append(command)
    return found


def assert_others_are_kept_out(slurm: VirtualSlurm, folder: Path) -> None:
    """Another configuration, or this machine, may not work in a run folder whose jobs are alive; the same may watch."""

    def again(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [NEMO_RUN, FAKE, *arguments]
        return subprocess.run(command, cwd=folder, env=slurm.environment, capture_output=True, text=True, check=False)

    for arguments in (("--cluster", "ci", "sft.token_budget=256"), ()):
        told = again(*arguments)
        assert told.returncode == 2 and "Slurm jobs are at work here" in told.stderr, told.stderr
    told = again("--cluster", "ci", "--detach")
    assert told.returncode == 0 and "which is alive" in told.stdout, told.stdout + told.stderr


@dataclass(frozen=True)
class Ended:
    """A launch that has ended: its run folder, exit code and output."""

    run: Path
    code: int
    told: str


@dataclass(frozen=True)
class Scenario:
    tiny: Ended
    failing: Ended
    powered_off: str


@pytest.fixture(scope="module")
def scenario(slurm: VirtualSlurm) -> Scenario:
    """The cascade loses a rank in sft and a node in the middle of RL. Until Slurm has noticed that the node is gone,
    which takes it half a minute, another cascade runs whose second stage fails."""
    folder = slurm.shared / "tiny"
    container = CONTAINER.format(repository=REPOSITORY, folder=folder, python=sys.executable)
    run = folder / "runs" / "cascade2_tiny"
    launcher = REPOSITORY / "launchers" / "cascade2_tiny.py"
    profile = PROFILE.format(attempts=3, container=container)
    with ExitStack() as launches:
        tiny = launches.enter_context(
            Launch(slurm, "tiny", launcher, "--only", "sft,if_rl", *VERY_SMALL, profile=profile)
        )
        pid, _ = tiny.wait_for(lambda: rank_process(run, "sft", 1))
        kill(pid)
        tiny.wait_for((run / "stages" / "02_if_rl" / "checkpoints" / "step_00001").exists)
        _, node = tiny.wait_for(lambda: rank_process(run, "if_rl", 1))
        slurm.power_off(node)

        profile = PROFILE.format(attempts=1, container="")
        failing = launches.enter_context(Launch(slurm, "failing", FAKE, profile=profile, FAKE_FAIL="0:1:1"))
        failing.wait_for(lambda: "fake" in slurm.ask("squeue", "--noheader", "--format=%j"))
        assert_others_are_kept_out(slurm, failing.folder)
        return Scenario(
            failing=Ended(failing.folder / "runs" / "fake", *failing.finish()),
            tiny=Ended(run, *tiny.finish()),
            powered_off=node,
        )


def test_a_crash_and_a_node_that_is_powered_off_end_well(slurm: VirtualSlurm, scenario: Scenario) -> None:
    code, told = scenario.tiny.code, scenario.tiny.told
    sft, rl = (scenario.tiny.run / "stages" / name for name in ("01_sft", "02_if_rl"))
    assert code == 0, told
    assert (sft / "done").exists() and (rl / "done").exists()
    assert [row["restart"] for row in attempts(sft)] == [0, 1]
    assert len(attempts(rl)) == 2 and attempts(rl)[1]["from_step"] >= 1
    assert [row["step"] for row in rows(rl / "metrics.jsonl")] == [1, 2, 3, 4, 5, 6, 7, 8]
    probes = [rows(path) for path in rl.glob("logs/node_*.jsonl")]
    second = {row["node"] for file in probes for row in file if row["restart"] == attempts(rl)[1]["restart"]}
    assert len(second) == 2 and scenario.powered_off not in second
    assert "02_if_rl: step 8 of 8" in told and "queued again 1 times" in told
    assert "\x1b[" not in (rl / "logs" / f"job_{attempts(rl)[0]['job']}_0.out").read_text()
    assert left_over(scenario.tiny.run) == []

    containers = [json.loads(line) for line in slurm.containers().splitlines()]
    assert {row["image"] for row in containers} == {"registry.example#team/cascade:1"}
    assert all(f"{REPOSITORY}:{REPOSITORY}" in row["mounts"] for row in containers)
    assert all(row["mount_home"] == 0 for row in containers)


def test_a_failing_stage_cancels_what_depends_on_it(slurm: VirtualSlurm, scenario: Scenario) -> None:
    """It fails at its first step, is tried once more, and is then a crash loop; the side branch goes on."""
    code, told = scenario.failing.code, scenario.failing.told
    stages = scenario.failing.run / "stages"
    done = sorted(path.parent.name for path in stages.glob("*/done"))
    assert code == 1, told
    assert done == ["01_sft", "04_side_rl"], told
    assert "02_math_rl" in told and "1 attempts ended without a checkpoint newer than that of step 0" in told
    assert attempts(stages / "03_last_rl") == []
    assert "03_last_rl: job" in told and "cancelled" in told
    assert slurm.ask("squeue", "--noheader") == ""
    assert left_over(scenario.failing.run) == []


def test_a_changed_stage_is_not_submitted_again_without_leave(slurm: VirtualSlurm, scenario: Scenario) -> None:
    run = scenario.failing.run
    command = [NEMO_RUN, FAKE, "--cluster", "ci", "sft.optimizer.lr=1e-4"]
    told = subprocess.run(
        command, cwd=run.parents[1], env=slurm.environment, capture_output=True, text=True, check=False
    )
    assert told.returncode == 2
    assert "  01_sft (done): sft.optimizer.lr 5e-05 -> 0.0001\n" in told.stderr
    assert "--rerun sft,side_rl: " in told.stderr
    assert (run / "stages/01_sft/done").exists() and not (run / "superseded").exists()
    assert slurm.ask("squeue", "--noheader") == ""


def one_rank(slurm: VirtualSlurm, name: str, *settings: str) -> Launch:
    """A stage of RL that learns from its first step on, with one engine."""
    launcher, profile = REPOSITORY / "examples" / "own_reward" / "launcher.py", PROFILE.format(attempts=3, container="")
    few = ("rollout.deterministic=true", "rl.steps=4", "rl.checkpoint_every=1", "evaluation.prompts_per_domain=2")
    return Launch(slurm, name, launcher, *few, *settings, profile=profile)


def lose_the_engines_node(launch: Launch, run: Path) -> None:
    """In the middle of RL."""
    launch.wait_for((run / "stages" / "01_rl" / "checkpoints" / "step_00001").exists)
    keeper = launch.wait_for(lambda: keeper_of(run))
    _, node = launch.wait_for(lambda: rank_process(run, "rl", 0))
    assert keeper.environ()["SLURMD_NODENAME"] != node
    keeper.kill()


@pytest.mark.long
def test_engines_on_nodes_of_their_own_give_the_bits_of_engines_beside_their_ranks(slurm: VirtualSlurm) -> None:
    """In turn with the trainer, with the loss of the engines' node; ahead of it, they end a run as well."""
    own, names = "rollout.placement=disaggregated", ("beside", "apart", "ahead")
    runs = [slurm.shared / name / "runs" / "own_reward" for name in names]
    with (
        one_rank(slurm, "beside") as first,
        one_rank(slurm, "apart", own) as second,
        one_rank(slurm, "ahead", own, "rollout.max_staleness=1") as third,
    ):
        lose_the_engines_node(second, runs[1])
        ends = [launch.finish() for launch in (first, second, third)]
    assert [code for code, _ in ends] == [0, 0, 0], ends
    stages = [run / "stages" / "01_rl" for run in runs]
    bits = [(stage / "export" / "model.safetensors").read_bytes() for stage in stages]
    assert bits[0] == bits[1] != bits[2]
    assert [len(attempts(stage)) for stage in stages] == [1, 2, 1]
    assert [row.get("age_max") for row in rows(stages[2] / "metrics.jsonl")] == [None, 1, 1, 1]
    assert [row["grad_norm"] > 0 for row in rows(stages[0] / "metrics.jsonl")] == [True] * 4
    assert "on 1 nodes: " in ends[0][1] and "on 2 nodes, 1 of them the engines': " in ends[1][1]
    assert slurm.ask("squeue", "--noheader") == ""
    assert not any(map(left_over, runs))
