"""What the processes of a box use during one test or command, sampled by their worker."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterable

from cascade_rl.rl_stages.sandbox import process_tree
from cascade_rl.rl_stages.sandbox.inside.kernel_memory import kernel_memory, locks, most_of_mappings, of_mappings
from cascade_rl.rl_stages.sandbox.limits import MIB, Limits

TICK_SECONDS = 0.05
EXCUSED_PROCESSES = 64
MAPPINGS_MIB = 128  # of the kernel's memory for them: while more are counted, nobody watches the rest
MOST_LOCKS = 4096  # on parts of files; the kernel keeps 200 bytes of each, and bounds them by nothing


class ClientGone(Exception):
    """The client has ended, so nobody reads the answer."""


class BeyondLimit(Exception):
    """The processes of a box together exceed a limit. `status` is that of their test or command."""

    def __init__(self, status: str, what: str) -> None:
        super().__init__(f"all its processes together: {what}")
        self.status = status


class Watch:
    """Begins now. `spare_seconds`: processor time beyond the limit, which the driver enforces more gently.

    `client` is the process that the worker answers to. All descendants of the worker belong to its box.
    """

    def __init__(self, client: int, limits: Limits, spare_seconds: float = 0.0) -> None:
        self._client, self._limits, self._spare_seconds = client, limits, spare_seconds
        self._started = time.monotonic()
        self._now = process_tree.usages(os.getpid())
        self._seen = dict(self._now)
        self._summed_before, self._own_before = _summed(self._now.values()), _own(self._now.values())
        self._queued_before = _queued(self._now.values())
        self._waits: list[tuple[float, float]] = []  # first and last moment, apart from each other

    @property
    def wall_seconds(self) -> float:
        return time.monotonic() - self._started

    @property
    def cpu_seconds(self) -> float:
        """The larger of two lower bounds: what the kernel sums, to which nobody adds whose parent ignores its end, and
        what was seen of each process."""
        summed = _summed(self._now.values()) - self._summed_before
        return max(summed, _own(self._seen.values()) - self._own_before)

    def look(self) -> None:
        """Must be called every tick. Raises ClientGone, BeyondLimit."""
        if client_gone(self._client):
            raise ClientGone
        self._now = process_tree.usages(os.getpid())
        self._note_wait(max(map(self._newly_queued, self._now), default=0.0))
        self._seen |= self._now
        if self._too_much_memory():
            raise BeyondLimit("memory limit", f"more than {self._limits.memory_mib} MiB")
        if locks(self._now) > MOST_LOCKS:
            raise BeyondLimit("memory limit", f"more than {MOST_LOCKS} locks on parts of files")
        if self.cpu_seconds > self._limits.cpu_seconds + self._spare_seconds:
            raise BeyondLimit("time limit", f"more than {self._limits.cpu_seconds:g} s of processor time")
        if self.wall_seconds > self._limits.wall_seconds and not self._excusable():
            raise BeyondLimit("time limit", f"{len(self._seen)} of them, {self.wall_seconds:.0f} s")

    def _too_much_memory(self) -> bool:
        """Mappings take long to count. Where there can be only few they are not, and more than MAPPINGS_MIB are too
        many."""
        now = self._now.values()
        resident = sum(usage.memory_bytes for usage in now)
        left = self._limits.memory_mib * MIB - resident - kernel_memory(now, self._limits.file_mib * MIB)
        few = min(left, MAPPINGS_MIB * MIB)
        return sum(map(most_of_mappings, now)) > few and of_mappings(now, few) > few

    def _newly_queued(self, pid: int) -> float:
        """How long a process has waited for a processor since the last look."""
        return self._now[pid].queued_seconds - (self._seen[pid].queued_seconds if pid in self._seen else 0.0)

    def _note_wait(self, seconds: float) -> None:
        """A process has waited until now, for so long."""
        last = time.monotonic()
        first = last - seconds
        while self._waits and self._waits[-1][1] >= first:
            first = min(first, self._waits.pop()[0])
        self._waits.append((first, last))

    def starved(self) -> bool:
        """Whether the box ran, or waited for a processor, for more than half of the wall time, and some process of it
        waited in at least a quarter of that time.

        Then the machine was too busy, since a box that runs as much on a free one exceeds its processor time. There all
        processors are busy with the box while a process of it waits, so that it waits no longer than it may run.
        """
        queued = _queued(self._seen.values()) - self._queued_before
        waited = sum(last - first for first, last in self._waits)
        return (
            self._excusable() and self.cpu_seconds + queued > self.wall_seconds / 2 and waited > self.wall_seconds / 4
        )

    def _excusable(self) -> bool:
        """Whether its processes cannot be what kept the box from a processor: they had no more processor time than they
        may, and are so few that what ended unseen cannot be much."""
        return self.cpu_seconds <= self._limits.cpu_seconds and len(self._seen) <= EXCUSED_PROCESSES


def client_gone(client: int) -> bool:
    """Whether the client has ended or closed its end of the pipe. Call it only while the client waits for an answer.

    Such a client sends nothing, so anything that can be read is the end of the pipe. The parent's id is checked too,
    because a child that the client forked may hold the pipe open.
    """
    return os.getppid() != client or bool(select.select([0], [], [], 0)[0])


def _summed(usages: Iterable[process_tree.Usage]) -> float:
    return sum(usage.cpu_seconds + usage.children_seconds for usage in usages)


def _own(usages: Iterable[process_tree.Usage]) -> float:
    return sum(usage.cpu_seconds for usage in usages)


def _queued(usages: Iterable[process_tree.Usage]) -> float:
    return sum(usage.queued_seconds for usage in usages)
