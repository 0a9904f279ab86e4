"""What this machine gives untrusted code: the sandbox's tier, what a box costs, whether patches are graded right, and
which attacks each tier contains (docs/security.md)."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from multiprocessing import get_context

from cascade_rl.rl_stages.core.verdict import Verdict
from cascade_rl.rl_stages.lessons.swe_executed import lessons
from cascade_rl.rl_stages.rewards.swe.grading import grade
from cascade_rl.rl_stages.rewards.swe.instance import Instance, parse_instance
from cascade_rl.rl_stages.rewards.swe.repository import Files
from cascade_rl.rl_stages.sandbox import Program, Sandbox, Tier, strongest
from cascade_rl.rl_stages.sandbox.outside.attacks import ATTACKS, SLOW
from cascade_rl.rl_stages.sandbox.outside.ordinary_user import become
from cascade_rl.rl_stages.sandbox.outside.probe import why_not
from cascade_rl.rl_stages.sandbox.walls import landlock

BOXES = 10
ANOTHER = 65534  # nobody, as whom root tries the attacks again
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
    scores = golden.score, wrong.score, forged.score
    return int(scores != (1.0, 0.0, 0.0) or any([_tell_tiers(), os.geteuid() == 0 and _tell_tiers_as_another()]))


def _tell_tiers_as_another() -> bool:
    """The same as an ordinary user, in a process that becomes him."""
    sys.stdout.flush()
    child = get_context("fork").Process(target=_as_another)
    child.start()
    child.join()
    return child.exitcode != 0


def _as_another() -> None:
    try:
        become(ANOTHER)
    except OSError as why:
        print(f"attack: as user {ANOTHER}: not tried: {why}")
        return
    sys.exit(_tell_tiers())


def _tell_tiers() -> bool:
    """Whether an attack was not contained in a tier that works here."""
    return any([_tell_attacks(what, sandbox) for what, sandbox in _sandboxes()])


def _sandboxes() -> Iterator[tuple[str, Sandbox]]:
    """Each tier that works here, of Landlock its first version too, and what it is called."""
    user = "root" if os.geteuid() == 0 else f"user {os.geteuid()}"
    for tier in Tier:
        if reason := why_not(tier):
            print(f"attack: {tier}, as {user}: not tried: {reason}")
            continue
        here = f"Landlock {landlock.abi()} of Linux {platform.release()}" if tier is Tier.LANDLOCK else tier
        with Sandbox(2, tier) as sandbox:
            yield f"{here}, as {user}", sandbox
        if tier is Tier.LANDLOCK:
            with Sandbox(2, tier, landlock_abi=1) as sandbox:
                yield f"Landlock 1, as of Linux 5.13, as {user}", sandbox


def _tell_attacks(what: str, sandbox: Sandbox) -> bool:
    """Whether an attack was not contained. The slow ones are left out."""
    attacks = {name: attack for name, attack in ATTACKS.items() if name not in SLOW}
    with ThreadPoolExecutor(2) as threads:
        failures = list(threads.map(lambda attack: attack.tried(sandbox), attacks.values()))
    for name, failure in zip(attacks, failures, strict=True):
        print(f"attack: {what}: {name}: {'contained' if failure is None else f'NOT CONTAINED: {failure}'}")
    return any(failures)


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
