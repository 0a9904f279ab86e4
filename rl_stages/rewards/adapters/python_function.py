"""`python:pkg.mod:function`: a reward function with the signature of TRL or of verl.

It reads the whole completion with its reasoning, as in TRL and verl. As `python-answer:pkg.mod:function` it reads what
follows the reasoning.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from functools import partial

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.rewards.adapters.reward_process import SHIM, ProcessVerifier, prove

_TARGET = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def check(target: str) -> None:
    """UserError unless `target` is pkg.mod:function and this interpreter finds the package. Runs none of its code."""
    if not _TARGET.fullmatch(target):
        raise UserError(f"expected python:package.module:function; found 'python:{target}'")
    package = target.partition(":")[0].partition(".")[0]
    if importlib.util.find_spec(package) is None:
        raise UserError(f"expected {package!r}, of 'python:{target}', to be installed or on PYTHONPATH; it is neither")


def verifier(target: str, *, whole: bool) -> ProcessVerifier:
    return ProcessVerifier(_command(target), whole=whole)


def prove_function(target: str) -> None:
    """UserError, with the user's own traceback, unless the function can be imported and has a known signature."""
    prove(_command(target))


whole, answer = partial(verifier, whole=True), partial(verifier, whole=False)


def _command(target: str) -> list[str]:
    return [sys.executable, *SHIM, "function", target]
