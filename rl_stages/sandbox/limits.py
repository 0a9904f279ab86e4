"""The resources that an untrusted program may use."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds on one test of a program, or on one command.

    cpu_seconds   processor time, which is fair on a loaded machine. The bound on wall time is three times this plus one
                  second. It does not count time in which the program was ready to run but had no processor
    memory_mib    address space of each process, and resident memory of all of them together
    output_bytes  bytes of stdout, and as many of stderr
    processes     processes and threads at the same time
    file_mib      size of one file, and of each writable folder of a box
    """

    cpu_seconds: float = 10.0
    memory_mib: int = 1024
    output_bytes: int = 1 << 20
    processes: int = 64
    file_mib: int = 16

    @property
    def wall_seconds(self) -> float:
        return 3 * self.cpu_seconds + 1

    @property
    def patience_seconds(self) -> float:
        """Wall time after which a run that got no processor is abandoned, as a failure of the machine."""
        return 4 * self.wall_seconds
