"""`cascade bench async`: a stage of RL in turn and one step ahead, with a core for the trainer and one for the engine.

Both begin with the same weights and learn from the same prompts in the same order. An answer may be as long as half of
what the engine holds, many times the mean, so that the last one of a step is long waited for. The ways alternate. The
load of the machine is printed, since everything else that runs on these cores lengthens both.
"""

import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.rollout.vllm_worker import vllm_cpu_patches
from cascade_rl.launchers.local.run_local import run_cascade
from cascade_rl.rl_stages.config.base import BaseModel
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.run.run_folder import RunFolder, StageFolder
from cascade_rl.rl_stages.run.sample_record import read_samples
from cascade_rl.rl_stages.run.upgrade.kept_folders import refuse
from cascade_rl.rl_stages.sandbox.process_tree import descendants

WAYS: dict[str, dict[str, Any]] = {"in turn": {}, "ahead": {"placement": "disaggregated", "max_staleness": 1}}
RANK = (sys.executable, "-m", "cascade_rl.launchers.stage.run_stage")
SERVER = "cascade_rl.engine.rollout.server"
PIN_S, LEAST_STEPS = 0.2, 3


@dataclass(frozen=True)
class Measured:
    """One run of the stage.

    seconds   for each trained sample, from the end of the second step on: the first has nothing drawn ahead, the second
              includes the first weights
    waiting   share of them in which the trainer waits for samples
    age       mean, in weight versions
    reward    mean of the second half of the steps
    mean, longest   tokens of an answer
    load      of the machine at the end, over a minute
    """

    way: str
    seconds: float
    waiting: float
    age: float
    reward: float
    mean: float
    longest: int
    load: float


def run(json_path: Path | None, machine: str, source: Path, steps: int, rounds: int) -> int:
    """Prints a row for each run. After each, writes those so far to `json_path` if it is given: a run takes minutes."""
    if steps < LEAST_STEPS:
        raise UserError(
            f"--steps: expected at least {LEAST_STEPS}, of which the first two are not timed; found {steps}."
        )
    trainer, engine = two_cores()
    found = list[Measured]()
    with TemporaryDirectory(prefix="cascade-bench-") as scratch, pinned(trainer, engine):
        for number in range(rounds):
            for way in WAYS:
                cascade = benched(RunFolder.open(source), way, steps)
                found.append(measure(replace(cascade, name=f"{cascade.name}_{number}"), way, Path(scratch)))
                if json_path:
                    told = {
                        "machine": f"{machine}, {sampler()}",
                        "steps": steps,
                        "runs": [asdict(one) for one in found],
                    }
                    json_path.write_text(json.dumps(told, indent=2) + "\n")
    console = Console(highlight=False, width=120)
    console.print(_table(found, steps))
    console.print(f"trainer on core {trainer}, engine on core {engine}, of {machine}, {sampler()}")
    return 0


def benched(source: RunFolder, way: str, steps: int) -> Cascade:
    """The first stage of RL of a run, alone, from the weights that it started from there. UserError without one."""
    stage = next((stage for stage in source.cascade.stages if isinstance(stage, GrpoStage)), None)
    parent = source.cascade.parent(stage) if stage else None
    if stage is None or parent is None or not source.stage(parent.name).done:
        raise UserError(
            f"{source.root}: expected a stage of RL after a finished stage, whose weights both ways start from; found "
            "none. Run launchers/cascade2_short.py first."
        )
    longest = source.cascade.layout(stage).rollout.max_model_len // 2
    sampling = replace(stage.sampling, max_new_tokens=longest)
    alone = replace(stage, steps=steps, sampling=sampling, parent=None, gate={}, checkpoint_every=steps)
    return replace(
        source.cascade,
        name=f"bench_{way.replace(' ', '_')}",
        base=BaseModel(hf=str(source.stage(parent.name).export.absolute())),
        stages=(alone,),
        evaluation=replace(source.cascade.evaluation, domains=(stage.domain,), prompts_per_domain=8),
        rollout=replace(source.cascade.rollout, **WAYS[way]),
    )


def measure(cascade: Cascade, way: str, runs: Path) -> Measured:
    if run_cascade(cascade, runs, RANK, cascade.stages, refuse):
        raise RuntimeError(f"the run failed: see {runs / cascade.name}")
    return summary(RunFolder.open(runs / cascade.name).stages[0], way)


def summary(stage: StageFolder, way: str) -> Measured:
    """Of a stage that is done, with LEAST_STEPS or more."""
    ends = [row for row in stage.events.rows() if row["event"] == "step"]
    passed = ends[-1]["time"] - ends[1]["time"]
    rows = stage.metrics.rows()
    answers = [row["token_ids"] for end in ends for row in read_samples(stage.rollouts(end["step"]), ["token_ids"])]
    return Measured(
        way=way,
        seconds=passed / (len(answers) * (len(ends) - 2) / len(ends)),
        waiting=sum(row["seconds"].get("generation", 0.0) for row in ends[2:]) / passed,
        age=fmean(row.get("age", 0.0) for row in rows),
        reward=fmean(row["reward"] for row in rows[len(rows) // 2 :]),
        mean=fmean(map(len, answers)),
        longest=max(map(len, answers)),
        load=os.getloadavg()[0],
    )


def sampler() -> str:
    """vLLM's build and version."""
    build = "vllm" if vllm_cpu_patches.takes_cards() else "vllm-cpu"
    return f"{build} {version(build)}"


def two_cores() -> tuple[int, int]:
    """Of those that this process may use. Raises UserError where there is only one."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise UserError(f"bench async: expected two cores, one for each side; found {len(cores)}.")
    return cores[0], cores[1]


@contextmanager
def pinned(trainer: int, engine: int) -> Iterator[None]:
    """In the block, processes below this one run on one of two cores: engines' servers and what they start, or all
    others."""
    over = threading.Event()

    def pin() -> None:
        while not over.wait(PIN_S):
            below = set(descendants(os.getpid()))
            servers = {pid for pid in below if _is_server(pid)}
            served = servers.union(*(descendants(pid) for pid in servers))
            for pid in below:
                _pin(pid, engine if pid in served else trainer)

    thread = threading.Thread(target=pin, name="pin", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _is_server(pid: int) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        return SERVER in Path(f"/proc/{pid}/cmdline").read_text()
    return False


def _pin(pid: int, core: int) -> None:
    with suppress(FileNotFoundError, ProcessLookupError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.sched_setaffinity(int(thread), {core})


def _table(found: list[Measured], steps: int) -> Table:
    table = Table(title=f"{steps} steps of RL, in turn and one step ahead")
    for name in ("engines draw", "ms/sample", "trainer waits", "age", "reward", "tokens", "longest", "load"):
        table.add_column(name, justify="left" if name == "engines draw" else "right")
    for one in found:
        numbers = f"{1e3 * one.seconds:.1f}", f"{one.waiting:.0%}", f"{one.age:.2f}", f"{one.reward:.3f}"
        table.add_row(one.way, *numbers, f"{one.mean:.1f}", str(one.longest), f"{one.load:.1f}")
    return table
