"""What this machine gives untrusted code: the sandbox's tier, what a box costs, and whether attacks are contained."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

from cascade_rl.rl_stages.sandbox import Program, Sandbox
from cascade_rl.rl_stages.sandbox.outside.attacks import ATTACKS, SLOW
from cascade_rl.rl_stages.sandbox.outside.probe import attempts, unavailable

BOXES = 10
SUM = Program(language="python", source="print(sum(map(int, input().split())))")


def run() -> int:
    """Exit code 1 where an attack is not contained. Raises SandboxUnavailable."""
    reasons = dict(attempts())
    tier = next((tier for tier, reason in reasons.items() if reason is None), None)
    if tier is None:
        raise unavailable(reasons)
    for stronger, reason in reasons.items():
        print(f"sandbox: {stronger}: {'works' if reason is None else f'no: {reason}'}")
    with Sandbox(2, tier) as sandbox:
        print(f"sandbox: {_milliseconds_per_box(sandbox):.0f} ms for a box, best of {BOXES}")
        failures = _failures(sandbox)
    for name, failure in failures.items():
        print(f"attack: {name}: {'contained' if failure is None else f'NOT CONTAINED: {failure}'}")
    return int(any(failures.values()))


def _milliseconds_per_box(sandbox: Sandbox) -> float:
    times = [time.perf_counter()]
    for _ in range(BOXES):
        sandbox.run_program(SUM, [b"1 2"])
        times.append(time.perf_counter())
    return min(end - start for start, end in pairwise(times)) * 1000


def _failures(sandbox: Sandbox) -> Mapping[str, str | None]:
    """What is wrong with the outcome of each attack that takes no more than a moment."""
    attacks = {name: attack for name, attack in ATTACKS.items() if name not in SLOW}
    with ThreadPoolExecutor(2) as threads:
        runs = threads.map(lambda attack: sandbox.run_program(attack.program, [attack.stdin]), attacks.values())
        return {name: attacks[name].failure(run.tests[0]) for name, run in zip(attacks, runs, strict=True)}
