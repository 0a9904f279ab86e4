"""The cluster profiles of clusters.toml, which `--cluster NAME` selects."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.config.node import Node, nearest
from cascade_rl.rl_stages.config.text import read_node

FILE = "clusters.toml"
SHIPPED = Path(__file__).parents[1]
VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
SECRET = re.compile(r"(^|_)(API_?KEY|KEY|TOKEN|SECRET|PASSWORD)($|_)")
SIGNAL = re.compile(r"USR1@(\d+)")
TIME = re.compile(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)")
MARGIN_S = 120  # Slurm sends the signal up to a minute early, and a stage needs time to start


@dataclass(frozen=True, kw_only=True)
class Cluster(Node):
    """One profile.

    account, partition   as sbatch takes them; omit the account if the cluster has none
    hardware         kind of accelerator: selects the launcher's layouts and an entry of the plan's hardware table
    gpus_per_node    GPUs of a node: each has a rank, a worker of an engine, or both in turn
    gpus             whether the jobs request GPUs; if false, the ranks compute on CPUs
    cpus_per_node    cores of a node, shared by its ranks and verifiers; None: the cluster's default
    time             time limit of one attempt of a job; at the limit, the job saves and is queued again
    signal           when a job is asked to save: USR1@SECONDS before its time limit
    container_image  registry name or path of an image; None: jobs run in the environment of the launcher
    mounts           mounts of the container, SOURCE:TARGET[:ro]; the run folder is always mounted
    env              environment variables of the jobs; their scripts contain them in plain text
    secrets_file     shell file of variables with mode 0600; jobs read it and never copy it
    setup            lines of bash that the job runs before the stage starts
    python           interpreter in the job; None: that of the launcher, or `python3` in a container
    job_dir          folder of the job scripts, on the shared file system; None: `slurm/` in the run folder
    cache_dir        folder of compiled kernels for all runs, on the shared file system; None: `cache/` of each run
    memory           memory of a node, as sbatch's --mem; "0" requests all of it
    exclusive        whether a job has its nodes to itself
    attempts_without_progress   a job stops after this number of attempts without a newer checkpoint
    max_requeues     maximum requeues of one job, for any reason
    phase_limit_seconds   a phase of a step that takes longer is logged, with its rank and pending samples
    """

    partition: str
    gpus_per_node: int
    account: str | None = None
    hardware: str = "h100"
    gpus: bool = True
    cpus_per_node: int | None = None
    time: str = "04:00:00"
    signal: str = "USR1@300"
    container_image: str | None = None
    mounts: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    secrets_file: str | None = None
    setup: tuple[str, ...] = ()
    python: str | None = None
    job_dir: str | None = None
    cache_dir: str | None = None
    memory: str = "0"
    exclusive: bool = True
    attempts_without_progress: int = 3
    max_requeues: int = 100
    phase_limit_seconds: int = 1800

    def __post_init__(self) -> None:
        for name in ("gpus_per_node", "attempts_without_progress", "phase_limit_seconds"):
            if getattr(self, name) < 1:
                raise UserError(f"{name}: expected at least 1, found {getattr(self, name)}.")
        self._check_time()
        self._check_env()

    def _check_time(self) -> None:
        limit, early = TIME.fullmatch(self.time), SIGNAL.fullmatch(self.signal)
        if limit is None:
            raise UserError(f"time: expected [DAYS-]HH:MM:SS, found '{self.time}'.")
        if early is None:
            raise UserError(f"signal: expected USR1@SECONDS, found '{self.signal}'.")
        days, hours, minutes, seconds = (int(part or 0) for part in limit.groups())
        total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
        if total < int(early[1]) + MARGIN_S:
            raise UserError(
                f"time: expected at least {MARGIN_S} s more than signal = {self.signal}, found {self.time}. "
                "Otherwise a job is asked to save before it has started."
            )

    def _check_env(self) -> None:
        for name in self.env:
            if not VARIABLE.fullmatch(name):  # NeMo-Run converts names to upper case
                raise UserError(f"env.{name}: expected a name of capitals, digits and _.")
            if SECRET.search(name):
                raise UserError(
                    f"env.{name}: expected no secret, because every job's script would contain it. Put it into a file "
                    "of mode 0600, as a line NAME=value, and set secrets_file to that file."
                )


def read_cluster(name: str, launcher: Path) -> Cluster:
    """The profile of that name, of the first place that has it; the examples that come with Cascade are the last.

    Raises UserError for an unknown name or key, with the places that were searched.
    """
    profiles: dict[str, tuple[Path, object]] = {}
    folders = Path.cwd(), Path.home() / ".config" / "cascade", launcher.parent, SHIPPED
    places = [folder / FILE for folder in folders]
    for path in places:
        for key, plain in (_load(path) if path.is_file() else {}).items():
            profiles.setdefault(key, (path, plain))
    if name not in profiles:
        raise UserError(
            f"--cluster: no {FILE} has a profile '{name}'. Did you mean '{nearest(name, profiles)}'? Searched were "
            f"{_listed(places)}."
        )
    path, plain = profiles[name]
    try:
        return read_node(plain, Cluster, name)
    except UserError as error:
        raise UserError(f"{path}: [{name}]: {error}") from None


def _load(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: expected valid TOML, found an error: {error}.") from None


def _listed(places: list[Path]) -> str:
    return ", ".join(str(path.parent) for path in dict.fromkeys(places))
