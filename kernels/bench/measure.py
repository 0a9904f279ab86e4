"""Measures a problem: one row per provider."""

from collections.abc import Iterator
from functools import partial

from cascade_rl.kernels.bench.limits import Limits
from cascade_rl.kernels.bench.machine import Machine
from cascade_rl.kernels.bench.problems import OURS, ROUNDED_LOGITS, Problem
from cascade_rl.kernels.bench.table import Row

PRODUCT = "one matrix product"


def rows_of(problem: Problem, machine: Machine, limits: Limits, too_slow: set[tuple[str, str]]) -> Iterator[Row]:
    """Rows of baseline, providers and reruns. On a timeout (op, provider) joins `too_slow` and is skipped later."""
    op, shape, baseline = problem.op, str(problem.shape), problem.baseline
    with limits.phase(f"{op} {shape}: {PRODUCT}"):
        unit_ms = machine.milliseconds(baseline.run) * baseline.scale
    yield Row(op, PRODUCT, shape, unit_ms, note=f"{baseline.work / unit_ms * 1e3:.3g} TFLOP/s")
    for provider in problem.providers:
        if (op, provider) in too_slow:
            row = Row(op, provider, shape, note="too slow at a smaller shape")
        elif limits.over:
            row = Row(op, provider, shape, note="no time left")
        else:
            row = measured(problem, provider, unit_ms, machine, limits)
        if row.note.startswith("TimeoutError"):
            too_slow.add((op, provider))
        yield row
    if problem.reruns is not None:
        with limits.phase(f"{op} {shape}: reruns"):
            yield Row(op, "ours, rerun", shape, note=problem.reruns())


def measured(problem: Problem, provider: str, unit_ms: float, machine: Machine, limits: Limits) -> Row:
    """The row of one provider. It may be foreign code, so any error becomes the note. unit_ms: of the baseline."""
    row = partial(Row, problem.op, provider, str(problem.shape))
    bounds = OURS if provider == "ours" else ROUNDED_LOGITS
    try:
        with limits.phase(f"{problem.op} {problem.shape}: {provider}"):
            machine.poison()
            found = problem.errors(provider)
            row = partial(row, error=found.value, gradient_error=found.gradient)
            if not (found.value <= bounds.value and found.gradient <= bounds.gradient):
                return row(note=f"wrong: above {bounds.value:g}, or {bounds.gradient:g} of a gradient")
            peak_mb = machine.peak_mb(partial(problem.both, provider))
            forward_ms = machine.milliseconds(partial(problem.forward, provider))
            both_ms = machine.milliseconds(partial(problem.both, provider))
    except Exception as reason:
        first_line = str(reason).partition("\n")[0][:90]
        return row(note=f"{type(reason).__name__}: {first_line}")
    return row(
        forward_ms=forward_ms,
        both_ms=both_ms,
        forward_share=problem.baseline.forward * unit_ms / forward_ms,
        both_share=problem.baseline.both * unit_ms / both_ms,
        peak_mb=peak_mb,
    )
