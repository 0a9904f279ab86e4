"""Why the sandbox itself could not run something."""

from __future__ import annotations

from cascade_rl.engine.core.errors import UserError


class SandboxFailure(RuntimeError):
    """The infrastructure failed, twice where the run could be repeated: it says nothing about the program."""


class SandboxUnavailable(UserError):
    """No tier of isolation works on this machine, so untrusted code is refused."""


class CompilerUnavailable(UserError):
    """The machine has no compiler for the program's language."""
