"""Writes what a launch would submit to files, without Slurm, GPU or run folder."""

from collections.abc import Sequence
from pathlib import Path

from cascade_rl.launchers import plan
from cascade_rl.launchers.local.inputs import check_settings
from cascade_rl.launchers.slurm.jobs import check_paths, check_precisions, make_jobs
from cascade_rl.launchers.slurm.submit import BACKENDS, Submission
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.stage import Stage
from cascade_rl.rl_stages.config.text import to_yaml
from cascade_rl.rl_stages.run.durable_file import write_atomically, write_json
from cascade_rl.rl_stages.run.known_data import KnownData
from cascade_rl.rl_stages.run.run_folder import INPUTS, RunFolder


def write_dryrun(cascade: Cascade, root: Path, chosen: Sequence[Stage], how: Submission, folder: Path) -> None:
    """Writes to `folder` cascade.yaml, plan.txt, jobs.json (nodes, how many have engines alone, what
    waits for what) and each job's script. Prints
    what the launch would set aside, or go on with under other settings."""
    check_settings(cascade)
    check_paths(how.cluster, root, folder)
    check_precisions(how.cluster, cascade, chosen)
    run = RunFolder(root, cascade, known=KnownData.read(root / INPUTS))
    stages = [run.stage(stage.name) for stage in chosen]
    jobs = make_jobs(run, stages, how.cluster, how.stage_command, Path.cwd())
    folder.mkdir(parents=True, exist_ok=True)
    scripts = BACKENDS[how.backend].render(jobs, folder)
    for job in jobs:
        write_atomically(folder / f"{job.stage.label}.sh", scripts[job.stage.config.name])
    entries = [
        {
            "stage": job.stage.config.name,
            "job": job.name,
            "nodes": job.nodes,
            "engine_nodes": job.division.engine_nodes,
            "after": job.needs,
        }
        for job in jobs
    ]
    write_json(folder / "jobs.json", entries)
    write_atomically(folder / "cascade.yaml", to_yaml(cascade))
    write_atomically(folder / "plan.txt", plan.text(cascade, cascade.hardware))
    for item in run.changed():
        print(f"{'would go on' if item.fate == 'goes on' else 'would be set aside'}: {item}")
