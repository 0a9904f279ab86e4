"""What a worker makes of what it sees of a box. The attacks show the same in boxes, but not on a free machine."""

import fcntl
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from cascade_rl.rl_stages.sandbox import Limits
from cascade_rl.rl_stages.sandbox.inside import watch
from cascade_rl.rl_stages.sandbox.inside.kernel_memory import locks
from cascade_rl.rl_stages.sandbox.inside.watch import MAPPINGS_MIB, TICK_SECONDS, BeyondLimit, Watch
from cascade_rl.rl_stages.sandbox.limits import MIB
from cascade_rl.rl_stages.sandbox.process_tree import Usage

LIMITS = Limits(cpu_seconds=2.0)
TICKS = int(LIMITS.patience_seconds / TICK_SECONDS)


class Machine:
    """A clock, and the usages of a box's processes by pid."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.processes: dict[int, Usage] = {}

    def tick(self, **used: float) -> None:
        """The same of all processes: processor time and time in the queue."""
        self.seconds += TICK_SECONDS
        for pid, before in self.processes.items():
            cpu, queued = before.cpu_seconds + used["cpu"], before.queued_seconds + used["queued"]
            self.processes[pid] = usage(cpu_seconds=cpu, queued_seconds=queued)


def usage(cpu_seconds: float = 0.0, queued_seconds: float = 0.0, address_bytes: int = MIB) -> Usage:
    return Usage("/proc/0", MIB, address_bytes, 64, cpu_seconds, 0.0, queued_seconds)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(watch, "time", SimpleNamespace(monotonic=lambda: machine.seconds))
    monkeypatch.setattr(watch, "client_gone", lambda _: False)
    monkeypatch.setattr(watch.process_tree, "usages", lambda _: dict(machine.processes))
    return machine


@pytest.mark.parametrize(
    ("processes", "queued_seconds", "starved"),
    [(1, 0.0, False), (1, 0.8 * TICK_SECONDS, True), (2, 0.4 * TICK_SECONDS, True), (50, 0.1 * TICK_SECONDS, False)],
    ids=["idle", "others have the processors", "so do they for two", "fifty in each other's way"],
)
def test_who_waits_for_himself_is_not_starved(machine, processes, queued_seconds, starved):
    machine.processes = {pid: usage() for pid in range(processes)}
    box = Watch(0, LIMITS)
    for _ in range(TICKS):
        machine.tick(cpu=LIMITS.cpu_seconds / TICKS / processes / 2, queued=queued_seconds)
        box.look()
    assert box.starved() is starved


def test_waits_that_are_seen_late_count_once(machine):
    """What a process waits is known when it gets its processor: here two of them, each every twentieth tick."""
    machine.processes = {1: usage(), 2: usage()}
    box = Watch(0, LIMITS)
    for tick in range(TICKS):
        machine.tick(cpu=0.0, queued=0.0)
        if tick % 20 in (0, 1):
            before = machine.processes[1 + tick % 20].queued_seconds
            machine.processes[1 + tick % 20] = usage(queued_seconds=before + 4 * TICK_SECONDS)
        box.look()
    waited = sum(last - first for first, last in box._waits)
    assert waited == pytest.approx(TICKS / 20 * 5 * TICK_SECONDS, rel=0.02)


def test_processes_one_after_another_are_starved_as_one_is(machine):
    box = Watch(0, LIMITS)
    for tick in range(TICKS):
        machine.processes = {tick // 30: usage(queued_seconds=(tick % 30 + 1) * 0.8 * TICK_SECONDS)}
        machine.tick(cpu=0.0, queued=0.0)
        box.look()
    assert box.starved()


@pytest.mark.parametrize("mib", [MAPPINGS_MIB - 1, MAPPINGS_MIB + 1])
def test_more_mappings_than_are_quickly_counted_are_too_many(machine, monkeypatch, mib):
    machine.processes = {pid: usage(address_bytes=1 << 30) for pid in range(8)}
    monkeypatch.setattr(watch, "of_mappings", lambda *_: mib * MIB)
    box = Watch(0, LIMITS)
    if mib < MAPPINGS_MIB:
        return box.look()
    with pytest.raises(BeyondLimit, match="MiB"):
        box.look()


def test_locks_are_counted_by_process(tmp_path: Path):
    with open(tmp_path / "file", "w") as file:
        before = locks({os.getpid()})
        for number in range(100):
            fcntl.lockf(file, fcntl.LOCK_EX, 1, 2 * number)
        fcntl.flock(file, fcntl.LOCK_SH)  # of which a descriptor has one
        assert locks({os.getpid()}) == before + 100 and locks({-1}) == 0
