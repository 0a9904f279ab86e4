"""A stage as a Slurm job: nodes, tasks, time, dependencies and command. Both backends render these jobs."""

import hashlib
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from cascade_rl.engine.cluster.rank_environment import RANK_ENVIRONMENT
from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.precisions import check_gpu_precision
from cascade_rl.engine.rollout.seats import Division, divide
from cascade_rl.launchers.slurm.cluster import Cluster
from cascade_rl.launchers.slurm.containers import all_mounts
from cascade_rl.launchers.stage.in_job import BEGAN, FINAL
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.stage import Stage
from cascade_rl.rl_stages.environments.nemo_gym_tables import VARIABLE as NEMO_GYM
from cascade_rl.rl_stages.run.run_folder import CACHE_VARIABLE, RunFolder, StageFolder
from cascade_rl.rl_stages.run.watchdog import LIMIT_VARIABLE


@dataclass(frozen=True, kw_only=True)
class Job:
    """The job of one stage. It has one task per node, which starts the ranks or the engines of the node.

    division  which nodes and cards the ranks have, and which the engines
    needs    names of submitted stages that must succeed first
    command  command of the task, not quoted for a shell
    setup    lines of bash that run before the tasks start
    """

    stage: StageFolder
    name: str
    division: Division
    needs: tuple[str, ...]
    command: tuple[str, ...]
    env: Mapping[str, str]
    setup: tuple[str, ...]
    mounts: tuple[str, ...]
    cluster: Cluster

    @property
    def nodes(self) -> int:
        return self.division.nodes

    @property
    def log(self) -> str:
        """Output file of the tasks. sbatch fills in %j, bash the number of requeues."""
        return f"{self.stage.logs}/job_%j_${{SLURM_RESTART_COUNT:-0}}.out"

    @property
    def srun_arguments(self) -> tuple[str, ...]:
        """Besides the container's arguments. A Slurm step does not inherit cpus-per-task from its job."""
        cpus, container = self.cluster.cpus_per_node, self.cluster.container_image
        return (
            *((f"--cpus-per-task={cpus}",) if cpus else ()),
            *(("--no-container-mount-home",) if container else ()),
        )

    @property
    def script_log(self) -> str:
        return f"{self.stage.logs}/sbatch_%j.out"


def check_paths(cluster: Cluster, *folders: Path) -> None:
    """Raises UserError for a folder that a job's script cannot name.

    NeMo-Run 0.11.1 writes it into `srun` lines without quotes (NVIDIA-NeMo/Run#556). Slurm reads a % in the name of a
    log, and the parts of a container's mount end at a colon or a comma.
    """
    for folder in folders:
        wrong = re.search(r"[^\w./@+=~-]" if cluster.container_image else r"[^\w./@+=~,:-]", str(folder.absolute()))
        if wrong:
            raise UserError(
                f"expected a folder that a Slurm script can name, with letters, digits and ./@+=~_- in its path; found "
                f"{wrong[0]!r} in '{folder.absolute()}'. Choose another folder."
            )


def check_precisions(cluster: Cluster, cascade: Cascade, stages: Sequence[Stage]) -> None:
    """Raises UserError for a stage in whose precision the cluster's GPUs cannot train."""
    for stage in stages:
        try:
            if cluster.gpus:
                check_gpu_precision(cascade.layout(stage).parallel.precision)
        except UserError as error:
            raise UserError(f"{stage.name}: {error}") from None


def name_prefix(run: Path) -> str:
    """The prefix of the names of all jobs of a run folder, and of no other jobs."""
    return f"{run.name}-{hashlib.sha256(str(run).encode()).hexdigest()[:8]}."


def make_jobs(
    run: RunFolder, stages: Sequence[StageFolder], cluster: Cluster, stage_command: Sequence[str], workdir: Path
) -> tuple[Job, ...]:
    """One job per stage, in the order of `stages`. Raises UserError if ranks or engines do not divide evenly over their
    nodes."""
    names = [stage.config.name for stage in stages]
    python = cluster.python or ("python3" if cluster.container_image else sys.executable)
    command = [python if part == sys.executable else part for part in stage_command]
    return tuple(
        Job(
            stage=stage,
            name=name_prefix(run.root) + stage.config.name,
            division=division,
            needs=tuple(other.config.name for other in run.dependencies(stage) if other.config.name in names),
            command=(
                *(python, "-m", "cascade_rl.launchers.stage.in_job", str(run.root), stage.config.name),
                *("--workdir", str(workdir), *_flags(division)),
                *("--devices", "gpu" if cluster.gpus else "cpu", "--attempts", str(cluster.attempts_without_progress)),
                *("--", *command),
            ),
            env=_environment(cluster),
            setup=_setup(cluster, stage),
            mounts=all_mounts(cluster, run.root),
            cluster=cluster,
        )
        for stage in stages
        for division in [_division(run, stage, cluster)]
    )


def _environment(cluster: Cluster) -> Mapping[str, str]:
    """Variables of the jobs; the profile's win. A job may not inherit the launcher's, so those it needs are set."""
    nemo_gym = os.environ.get(NEMO_GYM)
    here = {NEMO_GYM: str(Path(nemo_gym).absolute())} if nemo_gym else {}
    caches = {CACHE_VARIABLE: cluster.cache_dir} if cluster.cache_dir else {}
    if paths := os.environ.get("PYTHONPATH"):
        here["PYTHONPATH"] = paths
    return RANK_ENVIRONMENT | {LIMIT_VARIABLE: str(cluster.phase_limit_seconds)} | caches | here | dict(cluster.env)


def _division(run: RunFolder, stage: StageFolder, cluster: Cluster) -> Division:
    layout = run.cascade.layout(stage.config)
    rollout = layout.rollout if run.cascade.has_sampler(stage.config) else None
    try:
        return divide(layout.nproc, rollout, cluster.gpus_per_node)
    except UserError as error:
        raise UserError(f"{stage.config.name}.{error}") from None


def _flags(division: Division) -> tuple[str, ...]:
    """What the task of each node needs to know of it."""
    engines = "--engine-nodes", str(division.engine_nodes), "--engine-cards", str(division.engine_cards)
    return "--nproc-per-node", str(division.ranks), *(engines if division.engine_cards else ())


def _setup(cluster: Cluster, stage: StageFolder) -> tuple[str, ...]:
    """Lines of bash that run on the first node, outside the container, where Slurm's commands are.

    NeMo-Run's template makes bash echo every line, secrets included. It makes the tasks write to a pseudo-terminal, and
    it requeues a job for any reason. These lines undo that, for both backends.
    """
    secrets = (f"set -a; . {quote(cluster.secrets_file)}; set +a",) if cluster.secrets_file else ()
    final, began = (f"{quote(f'{stage.logs}/{mark}')}_$SLURM_JOB_ID" for mark in (FINAL, BEGAN))
    attempts = cluster.attempts_without_progress
    never = f"the job started {attempts} times, but its task never began: see the output in {stage.logs}"
    return (
        "set +vx; unset SLURM_UNBUFFEREDIO",
        *secrets,
        'export CASCADE_HEAD_NODE=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        *cluster.setup,
        "queue_again() {",
        "  code=$?",
        "  restarts=${SLURM_RESTART_COUNT:-0}",
        f"  last=$(cat {began} 2>/dev/null || echo -1)",
        f"  if [ $code -eq 0 ] || [ -e {final} ]; then return; fi",
        f"  if [ $((restarts - last)) -ge {attempts} ]; then",
        f"    echo {quote(never)} > {final}",
        f"  elif [ $restarts -lt {cluster.max_requeues} ]; then",
        '    scontrol requeue "$SLURM_JOB_ID"',
        "  fi",
        "}",
        "trap queue_again EXIT",
    )
