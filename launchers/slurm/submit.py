"""Runs a cascade as Slurm jobs: submits all at once, watches until they end, and judges them by their stage folders.

The launcher locks the run folder only while it submits. After that, its jobs keep other launchers out: this module and
`refuse_live_jobs` find them by name, and Slurm runs no two jobs of the same name at the same time.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from rich.console import Console
from rich.text import Text

from cascade_rl.engine.core.errors import UserError
from cascade_rl.launchers.local.inputs import check_inputs
from cascade_rl.launchers.report.score_table import score_table
from cascade_rl.launchers.slurm import job_states, nemo_run_backend, sbatch_backend
from cascade_rl.launchers.slurm.cluster import Cluster
from cascade_rl.launchers.slurm.containers import check_container
from cascade_rl.launchers.slurm.jobs import check_paths, check_precisions, make_jobs, name_prefix
from cascade_rl.launchers.stage.exit_status import INTERRUPTED
from cascade_rl.launchers.stage.in_job import final_mark
from cascade_rl.launchers.stage.log_tail import log_tail
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.stage import Stage
from cascade_rl.rl_stages.run.known_data import KnownData
from cascade_rl.rl_stages.run.progress import metrics_text
from cascade_rl.rl_stages.run.run_folder import INPUTS, RunFolder, StageFolder
from cascade_rl.rl_stages.run.upgrade.kept_folders import Agree

BACKENDS: Mapping[str, ModuleType] = {"nemo-run": nemo_run_backend, "sbatch": sbatch_backend}
SHARED_FOLDER_S = 10.0  # until this host sees what the host of a job wrote last


@dataclass(frozen=True)
class Submission:
    """What the command line says besides the cascade."""

    cluster: Cluster
    backend: str
    stage_command: Sequence[str]
    detach: bool
    agree: Agree


def run_on_cluster(cascade: Cascade, root: Path, chosen: Sequence[Stage], how: Submission) -> int:
    """Submits the `chosen` stages that are not done, or attaches to their live jobs. Returns 0 if all of them succeed.

    Raises UserError before anything is submitted: for bad input, for work that `how.agree` does not let be set aside,
    for a stage that needs one that is not done, and for living jobs of another configuration.
    """
    console = Console(highlight=False)
    check_paths(how.cluster, root, _job_dir(how.cluster, root))
    check_precisions(how.cluster, cascade, chosen)
    known = KnownData.read(root / INPUTS)
    for line in check_inputs(cascade, known, elsewhere=True):
        console.print(line, soft_wrap=True)
    check_container(how.cluster, cascade, Path.cwd())
    _check_secrets(how.cluster)
    live = job_states.live_jobs(name_prefix(root))
    ids = _attach(cascade, root, live, console) if live else _submit(cascade, root, chosen, how, known, console)
    run = RunFolder.open(root)
    stages = [run.stage(stage.name) for stage in chosen]
    if how.detach:
        console.print(f"Run folder: {root}. The same command watches the jobs.", soft_wrap=True)
        return 0
    try:
        Watch(stages, ids, console).until_ended()
    except KeyboardInterrupt:
        ending = f"scancel {' '.join(ids.values())}"
        console.print(f"The jobs continue. The same command watches them again; `{ending}` ends them.", soft_wrap=True)
        return INTERRUPTED
    return _judge(run, stages, console)


def refuse_live_jobs(root: Path) -> None:
    """Raises UserError if Slurm jobs are at work in a run folder that was submitted from here."""
    if live := job_states.live_stages(root):
        raise _at_work(root, live)


def _at_work(root: Path, live: Mapping[str, str]) -> UserError:
    jobs = ", ".join(f"{job} ({stage})" for stage, job in live.items())
    ids = " ".join(live.values())
    return UserError(f"{root}: Slurm jobs are at work here: {jobs}. Wait for them, or end them: scancel {ids}.")


def _check_secrets(cluster: Cluster) -> None:
    if cluster.secrets_file is None:
        return
    path = Path(cluster.secrets_file)
    if not path.is_file() or path.stat().st_mode & 0o077:
        raise UserError(f"secrets_file: expected a file that only you can read (chmod 600), found another in '{path}'.")


def _attach(cascade: Cascade, root: Path, live: Mapping[str, str], console: Console) -> Mapping[str, str]:
    """The living jobs, where they are of this very configuration."""
    if not (root / "cascade.yaml").exists() or RunFolder.open(root).cascade != cascade:
        raise _at_work(root, live)
    for stage, job in live.items():
        console.print(f"{stage}: watching job {job}, which is alive", soft_wrap=True)
    return live


def _submit(
    cascade: Cascade, root: Path, chosen: Sequence[Stage], how: Submission, known: KnownData, console: Console
) -> Mapping[str, str]:
    with RunFolder.claim(root, cascade, known, how.agree) as (run, _):
        stages = [run.stage(stage.name) for stage in chosen]
        waiting = [stage for stage in stages if not stage.done]
        for stage in waiting:
            _check_dependencies(run, stage, waiting)
        jobs = make_jobs(run, waiting, how.cluster, how.stage_command, Path.cwd())
        folder = _job_dir(how.cluster, root)
        for place in (folder, root / "slurm"):
            place.mkdir(parents=True, exist_ok=True)
        ids: Mapping[str, str] = BACKENDS[how.backend].submit(jobs, folder) if jobs else {}
    for job in jobs:
        after = f" after {', '.join(job.needs)}" if job.needs else ""
        own = f", {job.division.engine_nodes} of them the engines'" if job.division.engine_nodes else ""
        text = f"job {ids[job.stage.config.name]} on {job.nodes} nodes{own}{after}"
        _say(console, job.stage, f"{text}: {job.stage.config.batch_terms}")
    return ids


def _job_dir(cluster: Cluster, root: Path) -> Path:
    return Path(cluster.job_dir) if cluster.job_dir else root / "slurm"


def _check_dependencies(run: RunFolder, stage: StageFolder, waiting: Sequence[StageFolder]) -> None:
    for other in run.dependencies(stage):
        if not other.done and other not in waiting:
            raise UserError(
                f"{stage.label}: expected {other.config.name}, which it builds on, to be done, found it unfinished in "
                f"{run.root}. Submit it too: --from {other.config.name}."
            )
        if closed := [str(verdict) for verdict in other.gate() if not verdict.passed]:
            raise UserError(
                f"{stage.label}: expected the gate of {other.config.name}, which it builds on, to be open, found it "
                f"closed: {'; '.join(closed)}. Change that stage, or what its gate allows."
            )


class Watch:
    """Prints a line for each change of state of a job, and for each step."""

    def __init__(self, stages: Sequence[StageFolder], ids: Mapping[str, str], console: Console) -> None:
        self.stages = {stage.config.name: stage for stage in stages}
        self.ids, self.console = ids, console
        self.steps = {name: _newest_step(stage) for name, stage in self.stages.items()}

    def until_ended(self) -> None:
        for change in job_states.wait({name: job for name, job in self.ids.items() if name in self.stages}):
            self._tell_steps()
            if change:
                name, state = change
                _say(self.console, self.stages[name], f"job {self.ids[name]} {state}{self._why(name, state)}")

    def _tell_steps(self) -> None:
        for name, stage in self.stages.items():
            row = _newest_row(stage)
            if row.get("step", 0) != self.steps[name]:
                self.steps[name] = int(row["step"])
                _say(self.console, stage, f"step {self.steps[name]} of {stage.config.steps}  {metrics_text(row)}")

    def _why(self, name: str, state: job_states.JobState) -> str:
        """Why a job failed: the reason that it recorded, or the end of its newest log."""
        if not state.ended or state.state == "COMPLETED":
            return ""
        stage, job = self.stages[name], self.ids[name]
        mark = final_mark(stage, job)
        if reason := mark.read_text() if mark.exists() else "":
            return f": {reason}"
        log = _newest_log(stage, job)
        if log is None:
            return f", without a log. See `scontrol show job {job}`"
        return f". Last lines of {log}:\n{log_tail(log)}"


def _newest_log(stage: StageFolder, job: str) -> Path | None:
    """The log of the tasks of the newest attempt, or of the job's script if no task began."""
    for pattern in (f"job_{job}_*.out", f"sbatch_{job}.out"):
        if found := list(stage.logs.glob(pattern)):
            return max(found, key=lambda path: path.stat().st_mtime)
    return None


def _newest_row(stage: StageFolder) -> Mapping[str, float]:
    rows = stage.metrics.rows()
    return rows[-1] if rows else {}


def _newest_step(stage: StageFolder) -> int:
    return int(_newest_row(stage).get("step", 0))


def _judge(run: RunFolder, stages: Sequence[StageFolder], console: Console) -> int:
    deadline = time.monotonic() + SHARED_FOLDER_S
    while not all(stage.done for stage in stages) and time.monotonic() < deadline:
        time.sleep(1)
    for summary in filter(lambda summary: summary.before, run.record()):
        console.print(score_table(summary))
    bad = [stage.label for stage in stages if not stage.done or not all(verdict.passed for verdict in stage.gate())]
    console.print(f"Run folder: {run.root}" + (f". Not finished: {', '.join(bad)}" if bad else ""), soft_wrap=True)
    return 1 if bad else 0


def _say(console: Console, stage: StageFolder, text: str) -> None:
    console.print(Text.assemble((stage.label, "bold"), ": ", text), soft_wrap=True)
