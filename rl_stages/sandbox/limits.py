"""What an untrusted program may use."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds on one test of a program, or on one command.

    cpu_seconds   processor time: fair on a loaded machine. The clock may show three times as much, and one second, not
                  counting the time in which it was ready to run and had no processor
    memory_mib    address space of each process, and resident memory of all of them together
    output_bytes  of stdout, and of stderr
    processes     processes and threads at once
    file_mib      one file, and each writable place of a box
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
        """Wall time after which a run that had no processor is given up, as a failure of the machine."""
        return 4 * self.wall_seconds
