"""A stand-in for a stage process: it keeps the run folder as a real one does, and misbehaves when asked to.

FAKE_STEP_S    seconds a step takes
FAKE_FAIL      RANK:STEP:HOW, the rank fails at a step of the second stage: an exit code, `kill` or `hang`
FAKE_MATH_AFTER  held-out score of maths after each stage
FAKE_PIDS      file that gets the pid of each rank, and of a child of each where it is to fail at once
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from cascade_rl.rl_stages.run.run_folder import RunFolder, StageFolder

RANK = int(os.environ["RANK"])


def misbehave(stage: StageFolder, step: int) -> None:
    rank, at, how = os.environ.get("FAKE_FAIL", "-1:0:0").split(":")
    if (int(rank), int(at), stage.position) == (RANK, step, 2):
        print(f"rank {RANK} fails at step {step}", file=sys.stderr, flush=True)
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "hang":
            time.sleep(600)
        sys.exit(int(how))


def keep_step(stage: StageFolder, step: int) -> None:
    metrics = {"reward": step / 10, "tme": 1 + step * 1e-6}
    stage.record_step(step, metrics, {"generation": 0.5, "update": 0.25}, tokens=96)
    stage.begin_checkpoint(step)
    (stage.partial_checkpoint(step) / "weights").write_text(f"{step}")
    stage.commit_checkpoint(step)


def note_pids() -> None:
    if "FAKE_PIDS" in os.environ:
        child = [subprocess.Popen(["sleep", "60"]).pid] if "hang" not in os.environ.get("FAKE_FAIL", "hang") else []
        with open(os.environ["FAKE_PIDS"], "a") as file:
            print(os.getpid(), *child, file=file)


def meet(stage: StageFolder) -> None:
    """All ranks begin together, as the first collective has real ones do."""
    here = f"here_{os.environ['MASTER_PORT']}"
    (stage.logs / f"{here}_{RANK}").touch()
    while len(list(stage.logs.glob(f"{here}_*"))) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.01)


def main(root: str, name: str) -> None:
    note_pids()
    stage = RunFolder.open(Path(root)).stage(name)
    meet(stage)
    first = (stage.restart() if RANK == 0 else stage.last_step()) + 1
    if RANK == 0:
        stage.record_scores("before", {"instruction_following": 0.25, "math": 0.125})
    for step in range(first, stage.config.steps + 1):
        time.sleep(float(os.environ.get("FAKE_STEP_S", "0")))
        misbehave(stage, step)
        if RANK == 0:
            print(f"{stage.label} step {step}", flush=True)
            keep_step(stage, step)
    if RANK == 0:
        kept = float(os.environ.get("FAKE_MATH_AFTER", "0.5"))
        stage.record_scores("after", {"instruction_following": 0.25, "math": kept})
        stage.export.mkdir(exist_ok=True)
        stage.finish()
    while not stage.done:
        time.sleep(0.02)


main(sys.argv[1], sys.argv[2])
