"""Available memory: the machine's, or less where a job or container is limited."""

from pathlib import Path

import pytest

from cascade_rl.engine.cluster.host_memory import available_bytes

GIB = 1 << 30
V2 = {
    "proc/self/cgroup": "0::/slurm/job_1\n",
    "sys/fs/cgroup/slurm/job_1/memory.max": "max\n",
    "sys/fs/cgroup/slurm/memory.max": f"{8 * GIB}\n",
    "sys/fs/cgroup/slurm/memory.current": f"{6 * GIB}\n",
    "sys/fs/cgroup/slurm/memory.stat": f"anon 1\nfile {1 * GIB}\n",
}
V1 = {
    "proc/self/cgroup": "4:memory:/job\n1:cpu:/job\n0::/\n",
    "sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{8 * GIB}\n",
    "sys/fs/cgroup/memory/job/memory.usage_in_bytes": f"{7 * GIB}\n",
    "sys/fs/cgroup/memory/job/memory.stat": "cache 1\ntotal_cache 0\n",
}


@pytest.mark.parametrize(
    ("files", "gib"), [(V2, 3), (V1, 1), ({"proc/self/cgroup": "0::/\n"}, 16)], ids=["v2", "v1", "no limit"]
)
def test_the_lowest_limit_counts_and_page_cache_makes_room(files: dict[str, str], gib: int, tmp_path: Path) -> None:
    for name, text in {"proc/meminfo": f"MemFree: 1 kB\nMemAvailable: {16 * GIB >> 10} kB\n", **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert available_bytes(tmp_path) == gib * GIB


def test_this_machine_has_some() -> None:
    assert available_bytes() > 0
