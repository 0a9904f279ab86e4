"""Profiles of `clusters.toml`: what a cluster wants to hear, by the name that `--cluster` gives it."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.config.node import Node, nearest
from cascade_rl.rl_stages.config.text import read_node

FILE = "clusters.toml"
VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
SECRET = re.compile(r"(^|_)(API_?KEY|KEY|TOKEN|SECRET|PASSWORD)($|_)")
SIGNAL = re.compile(r"USR1@(\d+)")
TIME = re.compile(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)")
MARGIN_S = 120  # a signal comes up to a minute early, and a stage needs a moment to start


@dataclass(frozen=True, kw_only=True)
class Cluster(Node):
    """One profile.

    account, partition   as sbatch knows them; no account where the cluster has none
    hardware         kind of accelerator: chooses the launcher's layouts and names a row of the plan's hardware table
    gpus_per_node    ranks on a full node, one a GPU
    gpus             whether GPUs are asked for; false: the ranks compute on CPUs
    cpus_per_node    cores of a node that its ranks and verifiers share; None: what the cluster gives
    time             limit of one attempt of a job; one that reaches it is saved and queued again
    signal           when a job is told to save: USR1@SECONDS before its limit
    container_image  registry name or path of an image; None: jobs run in the environment of the launcher
    mounts           of the container, SOURCE:TARGET[:ro]; the run folder is mounted without being named
    env              variables of the jobs, in plain text in their scripts
    secrets_file     shell file of variables, read by the jobs and copied nowhere; mode 0600
    setup            lines of the job's script before the stage starts
    python           interpreter in the job; None: the launcher's own, in a container `python3`
    job_dir          folder of job scripts, on the shared file system; None: `slurm/` of the run folder
    memory           of a node, as sbatch's --mem; "0" is all
    exclusive        whether a job has its nodes alone
    attempts_without_progress   attempts without a newer checkpoint after which a job stops
    max_requeues     of one job, whatever their reason
    phase_limit_seconds   a phase of a step that takes longer is reported by rank and pending samples
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
                "Otherwise a job is told to save before it has started."
            )

    def _check_env(self) -> None:
        for name in self.env:
            if not VARIABLE.fullmatch(name):  # NeMo-Run writes names in upper case
                raise UserError(f"env.{name}: expected a name of capitals, digits and _.")
            if SECRET.search(name):
                raise UserError(
                    f"env.{name}: expected nothing secret, which would stand in every job's script. Put it into a file "
                    "of mode 0600 as `NAME=value` lines and name that file as secrets_file."
                )


def read_cluster(name: str, launcher: Path) -> Cluster:
    """The profile of that name. Raises UserError for an unknown name or key, and says where it looked."""
    profiles: dict[str, tuple[Path, object]] = {}
    places = [folder / FILE for folder in (Path.cwd(), Path.home() / ".config" / "cascade", launcher.parent)]
    for path in places:
        for key, plain in (_load(path) if path.is_file() else {}).items():
            profiles.setdefault(key, (path, plain))
    if not profiles:
        raise UserError(f"--cluster {name}: expected a {FILE} with profiles, found none in {_listed(places)}.")
    if name not in profiles:
        raise UserError(f"--cluster: no {FILE} has a profile '{name}'. Did you mean '{nearest(name, profiles)}'?")
    path, plain = profiles[name]
    try:
        return read_node(plain, Cluster, name)
    except UserError as error:
        raise UserError(f"{path}: [{name}]: {error}") from None


def _load(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: expected TOML, found none: {error}.") from None


def _listed(places: list[Path]) -> str:
    return ", ".join(str(path.parent) for path in dict.fromkeys(places))
