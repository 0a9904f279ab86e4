"""A real Slurm of four virtual nodes on this machine, installed and started by the test that asks for it."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

SCRIPTS = Path(__file__).with_name("cluster")
REPOSITORY = Path(__file__).parents[3]
PACKAGES = (
    *("slurmctld", "slurmd", "slurm-client", "munge", "slurm-wlm-basic-plugins", "iproute2"),
    *("gcc", "libc6-dev", "libslurm-dev"),  # for the container plugin
)
WITHOUT = "CASCADE_WITHOUT_SLURM"
PATH = f"/usr/sbin:/sbin:{os.environ['PATH']}"


def install() -> None:
    """Raises RuntimeError where it cannot: only CASCADE_WITHOUT_SLURM=1 may leave these tests out."""
    commands = ("slurmctld", "slurmd", "srun", "munged", "ip", "gcc")
    if all(shutil.which(command, path=PATH) for command in commands) and Path("/usr/include/slurm/spank.h").exists():
        return
    apt = ["apt-get", "-o", "DPkg::Lock::Timeout=120", "-qq"]
    for arguments in (["update"], ["install", "-y", "--no-install-recommends", *PACKAGES]):
        told = subprocess.run([*apt, *arguments], capture_output=True, text=True, check=False, env=_apt_environment())
        if told.returncode:
            raise RuntimeError(
                f"expected to install Slurm for its tests ({' '.join(PACKAGES)}), apt-get said: {told.stderr.strip()}. "
                f"Install it by hand, or set {WITHOUT}=1 to go without these tests."
            )


def _apt_environment() -> dict[str, str]:
    return {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}


@dataclass(frozen=True)
class VirtualSlurm:
    """The running cluster. `shared` is a folder that all nodes see."""

    root: Path
    shared: Path

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.root / "etc" / "slurm.conf"), "PATH": PATH}

    def power_off(self, node: str) -> None:
        """Kills everything that runs on a node, which is everything in its network namespace."""
        lines = (self.root / "pids").read_text().splitlines()
        (daemon,) = (line for line in lines if line.startswith(f"slurmd.{node} "))
        (self.root / "pids").write_text("\n".join(line for line in lines if line != daemon) + "\n")
        namespace = _network(daemon.split()[1])
        assert namespace not in (None, _network("self")), f"expected {node} to run in a network of its own"
        while victims := [path.name for path in Path("/proc").glob("[0-9]*") if _network(path.name) == namespace]:
            for pid in victims:
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)

    def ask(self, *command: str) -> str:
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, check=True).stdout

    def containers(self) -> str:
        return (self.root / "log" / "containers.jsonl").read_text()

    def _script(self, *arguments: str) -> None:
        told = subprocess.run(
            [SCRIPTS / arguments[0], *arguments[1:]],
            env={**self.environment, "ROOT": str(self.root), "SHARED": f"{self.shared}:{REPOSITORY}"},
            capture_output=True,
            text=True,
            check=False,
        )
        if told.returncode:
            raise RuntimeError(f"{' '.join(arguments)}: {told.stdout}{told.stderr}")


@contextmanager
def virtual_slurm(root: Path, shared: Path) -> Iterator[VirtualSlurm]:
    """Starts it, and ends every process of it, whatever the test does."""
    install()
    number = os.getpid() % 250
    cluster = VirtualSlurm(root, shared)
    interpreter = ":".join(dict.fromkeys([sys.prefix, sys.base_prefix]))
    environment = {"BASE_PORT": str(30_000 + 100 * number), "NET": f"198.18.{number}", "IMAGE_PATHS": interpreter}
    os.environ.update(environment)
    try:
        cluster._script("up.sh")
        yield cluster
    finally:
        cluster._script("down.sh")
        for name in environment:
            del os.environ[name]


def _network(pid: str) -> str | None:
    """The network namespace of a process; None of one that has ended."""
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/net")
    return None


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
