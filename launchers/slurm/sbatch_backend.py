"""Submits jobs as plain sbatch scripts, without NeMo-Run. Tests compare NeMo-Run's scripts with these."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import join, quote

from cascade_rl.engine.core.errors import UserError
from cascade_rl.launchers.slurm.jobs import Job
from cascade_rl.rl_stages.run.durable_file import write_atomically


def render(jobs: Sequence[Job], folder: Path) -> dict[str, str]:
    """Stage name -> script. `folder` is not used: the scripts do not depend on it."""
    return {job.stage.config.name: _script(job) for job in jobs}


def submit(jobs: Sequence[Job], folder: Path) -> dict[str, str]:
    """Writes the scripts to `folder` and submits them. Returns stage name -> job id."""
    ids: dict[str, str] = {}
    for job in jobs:
        path = folder / f"{job.stage.label}.sh"
        write_atomically(path, _script(job))
        after = ["singleton", *(f"afterok:{ids[name]}" for name in job.needs)]
        ids[job.stage.config.name] = _sbatch(["--parsable", f"--dependency={','.join(after)}", str(path)])
    return ids


def _sbatch(arguments: Sequence[str]) -> str:
    told = subprocess.run(["sbatch", *arguments], capture_output=True, text=True, check=False)
    if told.returncode:
        raise UserError(f"{join(['sbatch', *arguments])}: {told.stderr.strip()}. Jobs submitted before it stay queued.")
    return told.stdout.strip().partition(";")[0]


def _script(job: Job) -> str:
    exports = [f"export {name}={quote(value)}" for name, value in job.env.items()]
    flags = [
        f"#SBATCH --{name}" if value is True else f"#SBATCH --{name}={value}" for name, value in _flags(job).items()
    ]
    lines = ["#!/bin/bash", *flags, "", *exports, *job.setup, "", _srun(job)]
    return "\n".join(lines) + "\n"


def _flags(job: Job) -> Mapping[str, object]:
    cluster = job.cluster
    flags = {
        "job-name": job.name,
        "account": cluster.account,
        "partition": cluster.partition,
        "nodes": job.nodes,
        "ntasks-per-node": 1,
        "cpus-per-task": cluster.cpus_per_node,
        "gpus-per-node": cluster.gpus_per_node if cluster.gpus else None,
        "mem": cluster.memory,
        "exclusive": cluster.exclusive or None,
        "time": cluster.time,
        "signal": cluster.signal,
        "requeue": True,
        "open-mode": "append",
        "kill-on-invalid-dep": "yes",
        "output": job.script_log,
    }
    return {name: value for name, value in flags.items() if value is not None}


def _srun(job: Job) -> str:
    flags = ["srun", "--output", job.log, "--wait=60", "--kill-on-bad-exit=1", *job.srun_arguments]
    if job.cluster.container_image:
        flags += ["--container-image", quote(job.cluster.container_image)]
        flags += ["--container-mounts", quote(",".join(job.mounts))]
    return " ".join([*flags, *map(quote, job.command)])
