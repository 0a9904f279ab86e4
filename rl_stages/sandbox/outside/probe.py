"""Finds out which isolation works on this machine by running a real program in each tier."""

from __future__ import annotations

import functools
import platform
from collections.abc import Mapping

from cascade_rl.rl_stages.sandbox.errors import SandboxFailure, SandboxUnavailable
from cascade_rl.rl_stages.sandbox.outside.program import Program
from cascade_rl.rl_stages.sandbox.outside.slot import Slot
from cascade_rl.rl_stages.sandbox.tier import Tier

_PROGRAM = Program(language="python", source="print(sum(map(int, input().split())))")


@functools.cache
def probe() -> Tier:
    """The strongest tier that works here. Raises SandboxUnavailable, with the reason why each tier failed."""
    return strongest()[0]


def strongest() -> tuple[Tier, Mapping[Tier, str]]:
    """The strongest tier that works here, and why each stronger one does not. Raises SandboxUnavailable."""
    reasons: dict[Tier, str] = {}
    for tier in Tier:
        reason = why_not(tier)
        if reason is None:
            return tier, reasons
        reasons[tier] = reason
    said = "\n".join(f"  {tier}: {reason}" for tier, reason in reasons.items())
    raise SandboxUnavailable(
        f"expected a way to isolate untrusted code, found none, so that it is not run:\n{said}\n"
        "Install bubblewrap (Debian: apt-get install bubblewrap) and allow user namespaces, or run a kernel of 5.13 "
        f"or later with Landlock on; this one is {platform.release()}."
    )


def why_not(tier: Tier) -> str | None:
    """Why a real program did not run in this tier; None if it did."""
    slot = Slot(tier)
    try:
        run = slot.run_program(_PROGRAM, [b"1 2\n"], None)
    except SandboxFailure as failure:
        return str(failure)
    finally:
        slot.close()
    if run.compile_error or run.tests[0].output != b"3\n":
        return f"expected the program to print 3, found {run}"
    return None
