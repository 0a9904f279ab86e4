"""Speed and memory of the ops and of their baselines, in one process on the same tensors.

    python -m cascade_rl.kernels.bench [--json FILE]

Correctness comes first: a provider whose values or gradients do not match float64 is not timed. On a GPU the shapes are
those of the heads of a 30B and an 8B model. On a CPU the torch path runs on a small shape, then the compile gate runs;
nothing printed there says anything about a GPU.
"""

from collections.abc import Callable
from pathlib import Path

import torch

from cascade_rl.kernels import gate
from cascade_rl.kernels.bench.limits import Limits
from cascade_rl.kernels.bench.machine import Machine
from cascade_rl.kernels.bench.measure import rows_of
from cascade_rl.kernels.bench.problems import Problem, Shape, divergence, logprob
from cascade_rl.kernels.bench.table import Report, Row

GPU_SHAPES = [  # the largest last: they are dropped when time runs out
    Shape(tokens, hidden, vocab)
    for tokens in (8192, 16384, 65536)
    for hidden, vocab in ((2688, 131072), (4096, 151936))
]
CPU_SHAPES = [Shape(512, 256, 8192)]


def run(json_path: Path | None) -> int:
    """The whole benchmark, for `cascade bench kernels`. Returns 1 if the gate fails or a number of ours is missing."""
    machine = Machine.here()
    report = Report(machine.name, json_path)
    print(f"device: {machine.name}; torch {torch.__version__}")
    if machine.gpu is not None:
        benchmark(machine, GPU_SHAPES, report)
        return report.finish()
    print("No GPU: the torch path against naive torch, then the compile gate. Nothing below is a GPU's number.")
    benchmark(machine, CPU_SHAPES, report)
    report.gate = gate.check()
    return report.finish()


def benchmark(machine: Machine, shapes: list[Shape], report: Report) -> None:
    """Measures every op at every shape into `report`, within the time of `Limits`."""
    limits = Limits(report.give_up)
    too_slow: set[tuple[str, str]] = set()
    for shape in shapes:
        for make in (logprob, divergence):
            _run_op(make, shape, machine, limits, too_slow, report)


def _run_op(
    make: Callable[[Shape, Machine], Problem],
    shape: Shape,
    machine: Machine,
    limits: Limits,
    too_slow: set[tuple[str, str]],
    report: Report,
) -> None:
    name = f"{make.__name__} {shape}"
    if limits.over:
        return report.add(Row(make.__name__, "all", str(shape), note="no time left"))
    try:
        with limits.phase(f"{name}: float64"):
            problem = make(shape, machine)
        for row in rows_of(problem, machine, limits, too_slow):
            report.add(row)
    except Exception as reason:  # out of memory, or a context that a peer broke: the table must still be printed
        report.add(Row(make.__name__, "all", str(shape), note=f"{type(reason).__name__}: {reason}"))
