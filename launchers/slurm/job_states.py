"""Asks Slurm for the states of jobs, and waits for their end."""

import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cascade_rl.engine.core.errors import UserError
from cascade_rl.launchers.slurm.jobs import name_prefix

POLL_S = 2.0
ENDED = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
    "TIMEOUT",
}  # fmt: skip
SETTLED = 3  # a job has ended if this many polls in a row agree: a requeued job looks ended for a moment


@dataclass(frozen=True)
class JobState:
    """`reason` says why a job waits, `nodes` where it runs, `restarts` how often it was requeued."""

    state: str
    reason: str = ""
    nodes: str = ""
    restarts: int = 0

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    def __str__(self) -> str:
        again = f", queued again {self.restarts} times" if self.restarts else ""
        place = f" on {self.nodes}" if self.nodes and not self.ended else ""
        why = f" ({self.reason})" if self.reason and self.state == "PENDING" else ""
        return f"{self.state.lower()}{why}{place}{again}"


def live_jobs(prefix: str) -> dict[str, str]:
    """The ids of the user's jobs whose name starts with `prefix`, by the rest of the name."""
    rows = (line.split() for line in _ask("squeue", "--noheader", "--me", "--format=%i %j").splitlines())
    return {name.removeprefix(prefix): job for job, name in rows if name.startswith(prefix)}


def live_stages(root: Path) -> dict[str, str]:
    """The living jobs of a run folder that was submitted from here, by stage. Empty where there is no Slurm."""
    submitted = (root / "slurm").is_dir() and shutil.which("squeue")
    return live_jobs(name_prefix(root)) if submitted else {}


def state_of(job: str) -> JobState:
    """The state from the controller, or from the accounting if the controller no longer has the job."""
    told = subprocess.run(["scontrol", "show", "job", "-o", job], capture_output=True, text=True, check=False)
    if told.returncode == 0:
        pairs = dict(pair.split("=", 1) for pair in told.stdout.split() if "=" in pair)
        nodes = pairs.get("NodeList", "").replace("(null)", "")
        reason = pairs.get("Reason", "").replace("None", "")
        return JobState(pairs["JobState"], reason, nodes, int(pairs.get("Restarts", "0")))
    if "Invalid job id" not in told.stderr:
        return JobState("UNKNOWN", told.stderr.strip())
    rows = _ask("sacct", "-X", "--noheader", "--parsable2", "--format=State", "-j", job).split()
    return JobState(rows[0] if rows else "CANCELLED")


def wait(jobs: Mapping[str, str], poll_s: float = POLL_S) -> Iterator[tuple[str, JobState] | None]:
    """Yields each change of state of `jobs` (name -> id) until all have ended, and None after each poll."""
    known: dict[str, JobState] = {}
    looks = dict.fromkeys(jobs, 0)
    while waiting := [name for name in jobs if looks[name] < SETTLED]:
        for name in waiting:
            found = state_of(jobs[name])
            looks[name] = looks[name] + 1 if found.ended and found == known.get(name) else int(found.ended)
            if (found != known.get(name) and not found.ended) or looks[name] == SETTLED:
                yield name, found
            known[name] = found
        yield None
        time.sleep(poll_s)


def _ask(*command: str) -> str:
    try:
        told = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise UserError(
            f"expected Slurm's commands on PATH, found no '{command[0]}'. Launch on a Slurm host, or without --cluster."
        ) from None
    if told.returncode:
        raise UserError(f"{' '.join(command)}: {told.stderr.strip()}.")
    return told.stdout
