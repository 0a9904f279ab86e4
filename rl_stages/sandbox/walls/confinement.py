"""The restrictions that a process imposes on itself before it runs untrusted code. This module also runs in the box."""

from __future__ import annotations

import ctypes
import math
import os
import resource
from collections.abc import Callable, Sequence

from cascade_rl.engine.core.parent_death import die_with_parent
from cascade_rl.rl_stages.sandbox.limits import MIB, Limits
from cascade_rl.rl_stages.sandbox.walls import landlock, seccomp

STACK_MIB = 64  # each thread gets as much; 256 would leave room for only three in 1 GiB of address space
PENDING_SIGNALS = 1024  # and timers, of the whole user
COMPILER = Limits(cpu_seconds=30.0, memory_mib=2048, file_mib=64)
_PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 4, 38

_libc = ctypes.CDLL(None, use_errno=True)


def set_dumpable(dumpable: bool) -> None:
    """If False, no process of the same user can read the memory, environment or descriptors of this one."""
    _prctl(_PR_SET_DUMPABLE, int(dumpable))


def resource_limits(limits: Limits, stack_mib: int = STACK_MIB) -> dict[str, tuple[int, int]]:
    """(soft, hard) limits by the name that both `resource` and util-linux's prlimit use."""
    seconds = math.ceil(limits.cpu_seconds)
    equal = {
        "as": limits.memory_mib * MIB,
        "core": 0,
        "fsize": limits.file_mib * MIB,
        "nofile": 256,
        "nproc": limits.processes,
        "sigpending": PENDING_SIGNALS,
        "stack": stack_mib * MIB,
    }
    return {"cpu": (seconds, seconds + 1), **{name: (value, value) for name, value in equal.items()}}


def limit_resources(limits: Limits, stack_mib: int = STACK_MIB) -> None:
    for name, bounds in resource_limits(limits, stack_mib).items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name.upper()}"), bounds)


def confine_process(rules: int) -> None:
    """Confines this process to the files of a Landlock ruleset. It can start threads but no other process, and signal
    only itself."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    landlock.restrict(rules)
    seccomp.install(seccomp.one_process_filter(os.getpid()))


def confine_memory() -> None:
    """Denies this process, which is in namespaces, memory that nobody counts."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    seccomp.install(seccomp.memory_filter())


def command_confinement(
    readable: Sequence[str],
    writable: Sequence[str],
    limits: Limits,
    landlock_abi: int,
    hidden: Sequence[str] = (),
    own_user: bool = False,
) -> Callable[[], None]:
    """A function for a child to call before it executes a command. The command may have children and write to
    `writable`. Nothing can be read of the real paths `hidden`. `own_user`: see seccomp.command_filter."""
    shown, listed = landlock.around(readable, hidden) if hidden else (readable, ())
    filter_program = seccomp.command_filter(
        signals=landlock_abi >= landlock.SIGNALS_SCOPED,
        truncation=landlock_abi >= landlock.TRUNCATION_RESTRICTED,
        own_user=own_user,
    )

    def confine() -> None:
        die_with_parent()
        limit_resources(limits)
        rules = landlock.ruleset(shown, writable, landlock_abi, listed)
        _prctl(_PR_SET_NO_NEW_PRIVS, 1)
        landlock.restrict(rules)
        seccomp.install(filter_program)

    return confine


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl {option}: {os.strerror(ctypes.get_errno())}")
