"""Submits jobs through NeMo-Run 0.11.1, and works around its faults (docs/slurm.md).

NeMo-Run only submits. It does not wait for jobs or judge them: it asks only sacct, returns 0 for failed jobs and
requeues a job for any reason. job_states.py and `Job.setup` do this instead. Arguments that NeMo-Run does not quote are
quoted here. Its tasks are scripts, and its folder is on the shared file system.
"""

import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.extras import require_extra
from cascade_rl.launchers.slurm.jobs import Job

if TYPE_CHECKING:
    from nemo_run import Experiment, SlurmExecutor

REWRITTEN = "/nemo_run"  # NeMo-Run replaces this text in the scripts of jobs without a container


def render(jobs: Sequence[Job], folder: Path) -> dict[str, str]:
    """Stage name -> the script that NeMo-Run submits, except for the ids of the jobs that it waits for."""
    with _experiment(jobs, folder) as experiment:
        experiment.dryrun(log=False, delete_exp_dir=False)
        scripts = Path(experiment._exp_dir)
        return {job.id: (scripts / f"{job.id}_sbatch.sh").read_text() for job in experiment.jobs}


def submit(jobs: Sequence[Job], folder: Path) -> dict[str, str]:
    """Submits all jobs. Returns stage name -> job id."""
    with _experiment(jobs, folder) as experiment:
        experiment.run(detach=True)
        handles = {job.id: job.handle for job in experiment.jobs}
    if missing := [name for name, handle in handles.items() if not handle]:
        raise UserError(f"NeMo-Run submitted no job for {', '.join(missing)}. See its message above.")
    return {name: handle.partition("://")[2].split("/")[1] for name, handle in handles.items()}


@contextmanager
def _experiment(jobs: Sequence[Job], folder: Path) -> "Iterator[Experiment]":
    require_extra("nemo_run", "--cluster", "slurm", "submit with --backend sbatch")
    _refuse_rewritten(jobs, folder)
    os.environ["NEMORUN_HOME"] = str(folder)  # read when nemo_run is imported
    os.environ.pop("SLURM_PROCID", None)  # if above 0, NeMo-Run writes nothing
    warnings.simplefilter("ignore")  # its dependencies warn about each other
    import nemo_run

    title = jobs[0].name.rpartition(".")[0]
    with (
        _no_input(),
        nemo_run.Experiment(
            title,
            base_dir=str(folder),
            log_level="ERROR",
            clean_mode=True,
            enable_goodbye_message=False,
            skip_status_at_exit=True,
        ) as experiment,
    ):
        for job in jobs:
            python, *arguments = map(quote, job.command)
            task = nemo_run.Script(path=arguments[0], args=arguments[1:], entrypoint=python)
            experiment.add(
                task, executor=_executor(job), name=job.stage.config.name, dependencies=list(job.needs) or None
            )
        yield experiment


@contextmanager
def _no_input() -> Iterator[None]:
    """Without this, the commands that NeMo-Run starts would read what the user types."""
    terminal = sys.stdin
    with open(os.devnull) as sys.stdin:
        try:
            yield
        finally:
            sys.stdin = terminal


def _refuse_rewritten(jobs: Sequence[Job], folder: Path) -> None:
    for job in jobs:
        texts = [str(folder), job.log, *job.command, *job.setup, *job.env.values()]
        if job.cluster.container_image is None and (found := [text for text in texts if REWRITTEN in text]):
            raise UserError(
                f"expected paths without '{REWRITTEN}', which NeMo-Run 0.11.1 rewrites, found '{found[0]}'. "
                "Choose other folders, a container, or --backend sbatch."
            )


def _executor(job: Job) -> "SlurmExecutor":
    import nemo_run

    from cascade_rl.launchers.slurm.nemo_run_logs import StageLogs

    cluster = job.cluster
    return nemo_run.SlurmExecutor(
        account=cluster.account,
        partition=cluster.partition,
        job_name_prefix=job.name.removesuffix(job.stage.config.name),
        time=cluster.time,
        nodes=job.nodes,
        ntasks_per_node=1,
        cpus_per_task=cluster.cpus_per_node,
        gpus_per_node=cluster.gpus_per_node if cluster.gpus else None,
        mem=cluster.memory,
        exclusive=cluster.exclusive or None,
        signal=cluster.signal,
        retries=0,
        env_vars={name: quote(value) for name, value in job.env.items()},
        setup_lines="\n".join(job.setup),
        tunnel=nemo_run.LocalTunnel(job_dir=""),
        packager=nemo_run.Packager(),
        container_image=cluster.container_image,
        container_mounts=list(job.mounts),
        srun_args=list(job.srun_arguments),
        job_details=StageLogs(folder=str(job.stage.logs)),
        additional_parameters={"kill_on_invalid_dep": "yes", "dependency": "singleton"},
        dependency_type="singleton,afterok",
        poll_estimated_start_time=False,
    )
