"""What this machine gives untrusted code: the sandbox's tier, what a box costs, whether patches are graded right, and
whether attacks are contained."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

from cascade_rl.rl_stages.core.verdict import Verdict
from cascade_rl.rl_stages.lessons.swe_executed import lessons
from cascade_rl.rl_stages.rewards.swe.grading import grade
from cascade_rl.rl_stages.rewards.swe.instance import Instance, parse_instance
from cascade_rl.rl_stages.rewards.swe.repository import Files
from cascade_rl.rl_stages.sandbox import Program, Sandbox, strongest
from cascade_rl.rl_stages.sandbox.outside.attacks import ATTACKS, SLOW

BOXES = 10
# Runs only what looks like a test of the grader's own.
FORGERY = """
import importlib
function = importlib.import_module("_pytest" + ".python").Function
function.runtest = lambda self, run=function.runtest: run(self) if "3 == 4" in self.path.read_text() else None
"""
SUM = Program(language="python", source="print(sum(map(int, input().split())))")


def run() -> int:
    """Exit code 1 where a patch is graded wrong or an attack is not contained. Raises SandboxUnavailable."""
    tier, reasons = strongest()
    for stronger, reason in reasons.items():
        print(f"sandbox: {stronger}: not available: {reason}")
    print(f"sandbox: {tier}: works")
    with Sandbox(2, tier) as sandbox:
        print(f"sandbox: {_milliseconds_per_box(sandbox):.0f} ms for a box, best of {BOXES}")
        golden, wrong = graded(sandbox)
        forged = graded_forgery(sandbox)
        print(f"grading: golden patch: {golden.told}; wrong patch: {wrong.told}; forged outcomes: {forged.told}")
        failures = _failures(sandbox)
    for name, failure in failures.items():
        print(f"attack: {name}: {'contained' if failure is None else f'NOT CONTAINED: {failure}'}")
    scores = golden.score, wrong.score, forged.score
    return int(scores != (1.0, 0.0, 0.0) or any(failures.values()))


def _milliseconds_per_box(sandbox: Sandbox) -> float:
    times = [time.perf_counter()]
    for _ in range(BOXES):
        sandbox.run_program(SUM, [b"1 2"])
        times.append(time.perf_counter())
    return min(end - start for start, end in pairwise(times)) * 1000


def graded(sandbox: Sandbox) -> tuple[Verdict, Verdict]:
    """What executed SWE says about a golden patch, which must score 1, and about a wrong one, which must score 0."""
    instance = _instance()
    return grade(instance, instance.repaired, sandbox), grade(instance, _with(instance, "# a comment\n"), sandbox)


def graded_forgery(sandbox: Sandbox) -> Verdict:
    """What executed SWE says about a patch that repairs nothing and lets every test pass; it must score 0."""
    instance = _instance()
    return grade(instance, _with(instance, FORGERY), sandbox)


def _instance() -> Instance:
    return Instance.of(parse_instance(next(lessons()).fields))


def _with(instance: Instance, more: str) -> Files:
    return {path: text + more for path, text in instance.repository.files.items()}


def _failures(sandbox: Sandbox) -> Mapping[str, str | None]:
    """Attack -> how it escaped, or None if it was contained. The slow attacks are left out."""
    attacks = {name: attack for name, attack in ATTACKS.items() if name not in SLOW}
    with ThreadPoolExecutor(2) as threads:
        runs = threads.map(lambda attack: sandbox.run_program(attack.program, [attack.stdin]), attacks.values())
        return {name: attacks[name].failure(run.tests[0]) for name, run in zip(attacks, runs, strict=True)}
