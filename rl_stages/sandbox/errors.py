"""The errors of the sandbox itself, as opposed to those of the code that it runs."""

from __future__ import annotations

from cascade_rl.engine.core.errors import UserError


class SandboxFailure(RuntimeError):
    """The infrastructure failed, twice if the run could be repeated. This says nothing about the program."""


class SandboxUnavailable(UserError):
    """No tier of isolation works on this machine, so it must not run untrusted code."""


class CompilerUnavailable(UserError):
    """The machine has no compiler for the program's language."""
