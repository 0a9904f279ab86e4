"""The device of the benchmark, with its clock and its memory."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

POISON_BYTES = 8 << 30
TIMING_SECONDS = 1.5  # spent on one median
MAX_REPEATS, MIN_REPEATS = 10, 3


@dataclass(frozen=True)
class Machine:
    """A device. `gpu` is torch.cuda, or None on a CPU."""

    name: str
    device: torch.device
    gpu: ModuleType | Any = None

    @classmethod
    def here(cls) -> "Machine":
        if torch.cuda.is_available():
            return cls(torch.cuda.get_device_name(), torch.device("cuda"), torch.cuda)
        return cls(f"CPU, {torch.get_num_threads()} threads", torch.device("cpu"))

    def poison(self) -> None:
        """Makes the next GPU allocations hold NaN in any float dtype and -1 in any signed integer dtype."""
        if self.gpu is not None:
            self.gpu.empty_cache()
            free_bytes, _ = self.gpu.mem_get_info()
            torch.full((min(free_bytes // 2, POISON_BYTES),), 255, dtype=torch.uint8, device=self.device)

    def milliseconds(self, run: Callable[[], object]) -> float:
        """Median of MIN_REPEATS to MAX_REPEATS runs, after a warm-up run."""
        run()
        times: list[float] = []
        end = time.perf_counter() + TIMING_SECONDS
        while len(times) < MIN_REPEATS or (len(times) < MAX_REPEATS and time.perf_counter() < end):
            self.synchronize()
            start = time.perf_counter()
            run()
            self.synchronize()
            times.append(time.perf_counter() - start)
        return statistics.median(times) * 1e3

    def synchronize(self) -> None:
        if self.gpu is not None:
            self.gpu.synchronize()

    def peak_mb(self, run: Callable[[], object]) -> float | None:
        """MiB that `run` allocates at its peak on top of what was allocated before; None on a CPU."""
        if self.gpu is None:
            return None
        self.gpu.empty_cache()
        self.gpu.reset_peak_memory_stats()
        before = self.gpu.memory_allocated()
        run()
        return (self.gpu.max_memory_allocated() - before) / 2**20
