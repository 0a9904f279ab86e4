"""`verifiers:PACKAGE`: a taskset of the package `verifiers` (v1 API), whose rows carry its TaskData as `task`.

Its pins clash with the trainer's, so it is installed in a separate environment, together with PACKAGE.
CASCADE_VERIFIERS_PYTHON names the interpreter of that environment.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.rewards.adapters.reward_process import SHIM, ProcessVerifier

VARIABLE = "CASCADE_VERIFIERS_PYTHON"
INSTALL = "python3 -m venv DIR && DIR/bin/pip install verifiers==0.4.0 PACKAGE"

_PACKAGE = re.compile(r"[A-Za-z0-9][\w./@-]*")


def check(target: str) -> None:
    """UserError unless `target` looks like a package and the environment's interpreter is named and exists."""
    if not _PACKAGE.fullmatch(target):
        raise UserError(f"expected verifiers:PACKAGE; found 'verifiers:{target}'")
    python = os.environ.get(VARIABLE)
    if not python or not Path(python).is_file():
        raise UserError(
            f"expected {VARIABLE} to be the interpreter of an environment with the package verifiers; found "
            f"{python!r}. Make one: {INSTALL}"
        )


def verifier(target: str) -> ProcessVerifier:
    return ProcessVerifier([os.environ[VARIABLE], *SHIM, "verifiers", target])
