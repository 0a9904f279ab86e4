"""The command line of a box in its own namespaces."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from cascade_rl.rl_stages.sandbox.limits import MIB, Limits
from cascade_rl.rl_stages.sandbox.walls import confinement, interpreter

HOME = "/workspace"
OWN_FOLDERS = ("/tmp", "/dev/shm", HOME)  # in memory, but for a workspace
_NAMESPACES = ("user", "pid", "net", "ipc", "uts", "cgroup-try")


def command_line(
    limits: Limits,
    seccomp: int,
    *,
    proc: bool,
    environment: Mapping[str, str] = MappingProxyType({}),
    workspace: str | None = None,
    first: bool = False,
    extra: Sequence[str] = (),
    hidden: Sequence[str] = (),
) -> list[str]:
    """The command line of bwrap, up to the command in the box. `seccomp` is the descriptor of the filter.
    Nothing can be read of the real paths `hidden`.

    Only these are writable: `workspace`, or an empty folder of `file_mib` if there is none; /tmp and /dev/shm, each of
    `file_mib`. If `first`, the command is process 1 of the box, which the box can neither kill nor stop. Otherwise that
    is bwrap. It must be started with an empty environment, because the box can read it there. --clearenv clears only
    the environments of the other processes.
    """
    sized = ["--size", str(limits.file_mib * MIB), "--tmpfs"]
    variables = interpreter.environment(HOME, "/tmp") | dict(environment)
    home = ["--bind", workspace, HOME] if workspace else [*sized, HOME]
    return [
        *(_program(), *(f"--unshare-{name}" for name in _NAMESPACES)),
        *(["--as-pid-1"] if first else []),
        *("--die-with-parent", "--new-session", "--hostname", "box", "--clearenv"),
        *(word for name, value in variables.items() for word in ("--setenv", name, value)),
        *_system(),
        *(*sized, "/tmp"),  # first, because this Python or the workspace's parent may lie below it
        *(word for path in (*interpreter.prefixes(), *extra) for word in ("--ro-bind", path, path)),
        *(word for path in interpreter.at_each_root(hidden) for word in _covered(path)),
        # Read-only, since a box may not make itself the last to get a processor (autogroup), or the first to be killed.
        *(["--proc", "/proc", "--remount-ro", "/proc"] if proc else []),
        # --dev makes a tmpfs of half the memory. A program could fill it. What maps /dev/zero has memory that nobody
        # counts; /dev/full reads alike and cannot be mapped. The machine has only a few thousand terminals.
        *("--dev", "/dev", "--dev-bind", "/dev/full", "/dev/zero", *sized, "/dev/shm", "--remount-ro", "/dev"),
        *("--tmpfs", "/dev/pts", "--remount-ro", "/dev/pts"),
        *(*home, "--remount-ro", "/", "--chdir", HOME, "--seccomp", str(seccomp), "--"),
    ]


def prlimit(limits: Limits) -> list[str]:
    bounds = confinement.resource_limits(limits).items()
    return ["/usr/bin/prlimit", *(f"--{name}={soft}:{hard}" for name, (soft, hard) in bounds), "--"]


def _covered(path: str) -> list[str]:
    if Path(path).is_dir():
        return ["--tmpfs", path, "--remount-ro", path]
    return ["--ro-bind", os.devnull, path]


def _program() -> str:
    found = shutil.which("bwrap")
    if found is None:
        raise FileNotFoundError("bwrap is not in PATH (Debian: apt-get install bubblewrap)")
    return found


def _system() -> list[str]:
    words = ["--ro-bind", "/usr", "/usr"]
    for path in interpreter.SYSTEM:
        if Path(path).is_symlink():
            words += ["--symlink", os.readlink(path), path]
        elif Path(path).exists():
            words += ["--ro-bind", path, path]
    return words + [word for path in interpreter.ETC for word in ("--ro-bind-try", path, path)]
