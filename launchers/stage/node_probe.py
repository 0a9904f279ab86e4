"""Checks that a node is fit for its part of a job, before the ranks start. A bad node is then named in a message,
instead of being guessed from a hanging collective. Torch-free."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cascade_rl.engine.cluster.host_memory import available_bytes
from cascade_rl.rl_stages.run.durable_file import JsonLines

GIB = 2**30
MIN_FREE = {"memory": GIB, "shared_memory": GIB // 2, "run_folder": GIB, "temporary": GIB}
MIN_GPU_FREE = 0.9  # with less, another process uses the GPU
GPU_FIELDS = {
    "index": "index",
    "name": "name",
    "total_mib": "memory.total",
    "free_mib": "memory.free",
    "clock_mhz": "clocks.sm",
    "max_clock_mhz": "clocks.max.sm",
    "slowed": "clocks_throttle_reasons.hw_slowdown",
    "hot": "clocks_throttle_reasons.hw_thermal_slowdown",
}


@dataclass(frozen=True)
class NodeState:
    """The state of a node. `free` is in bytes. `head` are the addresses of the job's first node. `gpus` is None if the
    job uses none. `complaint` is the error message of nvidia-smi, if any."""

    node: str
    free: dict[str, int]
    head: tuple[str, ...]
    gpus: tuple[dict[str, str], ...] | None
    complaint: str = ""

    def problems(self, cards: int, nodes: int) -> Iterator[str]:
        """Yields the reasons why processes with `cards` cards, in a job on `nodes` nodes, fail here or are slow."""
        for place, minimum in MIN_FREE.items():
            if self.free[place] < minimum:
                found = f"{self.free[place] / GIB:.1f}"
                yield f"expected {minimum / GIB:.1f} GiB or more free in {place.replace('_', ' ')}, found {found}"
        if not self.head:
            yield "expected the first node's name to resolve here, found no address"
        elif nodes > 1 and any(address.startswith("127.") or address == "::1" for address in self.head):
            yield f"expected an address of the first node that others reach, found loopback {self.head[0]}"
        if self.complaint:
            yield f"nvidia-smi: {self.complaint}"
        elif self.gpus is not None:
            yield from _gpu_problems(self.gpus, cards)


def observe(run_folder: Path, head: str, gpus: bool) -> NodeState:
    """`head` is the host name of the job's first node."""
    found, complaint = _gpus() if gpus else (None, "")
    return NodeState(
        node=os.environ.get("SLURMD_NODENAME", socket.gethostname()),
        free={
            "memory": available_bytes(),
            "shared_memory": shutil.disk_usage("/dev/shm").free,
            "run_folder": shutil.disk_usage(run_folder).free,
            "temporary": shutil.disk_usage("/tmp").free,
        },
        head=_addresses(head),
        gpus=found,
        complaint=complaint,
    )


def record(state: NodeState, logs: Path, **facts: Any) -> None:
    """Appends a line to a file of this node: on a shared file system, several nodes cannot append to one file."""
    JsonLines(logs / f"node_{state.node}.jsonl").append({"time": time.time(), **facts, **asdict(state)})


def _gpu_problems(gpus: tuple[dict[str, str], ...], cards: int) -> Iterator[str]:
    if len(gpus) < cards:
        yield f"expected {cards} visible GPUs, found {len(gpus)}"
    for gpu in gpus:
        free, total = float(gpu["free_mib"]), float(gpu["total_mib"])
        if free < MIN_GPU_FREE * total:
            yield f"GPU {gpu['index']}: expected free memory, found {total - free:.0f} of {total:.0f} MiB in use"
        if "Active" in (gpu["slowed"], gpu["hot"]):
            yield f"GPU {gpu['index']}: expected full clocks, found {gpu['clock_mhz']} MHz because of heat or power"


def _gpus() -> tuple[tuple[dict[str, str], ...], str]:
    """The GPUs that the job may use, as nvidia-smi lists them, and its error message, if any."""
    if shutil.which("nvidia-smi") is None:
        return (), "not found on PATH"
    query = ["nvidia-smi", f"--query-gpu={','.join(GPU_FIELDS.values())}", "--format=csv,noheader,nounits"]
    told = subprocess.run(query, capture_output=True, text=True, check=False, timeout=60)
    if told.returncode:
        return (), (told.stdout + told.stderr).strip()
    rows = ([cell.strip() for cell in line.split(",")] for line in told.stdout.splitlines())
    gpus = [dict(zip(GPU_FIELDS, row, strict=True)) for row in rows]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return tuple(gpu for gpu in gpus if visible is None or gpu["index"] in visible.split(",")), ""


def _addresses(host: str) -> tuple[str, ...]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except socket.gaierror:
        return ()
    return tuple(dict.fromkeys(str(address[0]) for *_, address in found))
