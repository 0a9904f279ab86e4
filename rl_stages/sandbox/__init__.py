"""Runs untrusted code: programs under test and commands in a workspace."""

from cascade_rl.rl_stages.sandbox.errors import CompilerUnavailable, SandboxFailure, SandboxUnavailable
from cascade_rl.rl_stages.sandbox.limits import Limits
from cascade_rl.rl_stages.sandbox.outside.folder import Folder
from cascade_rl.rl_stages.sandbox.outside.pool import Sandbox, cores, tier_on
from cascade_rl.rl_stages.sandbox.outside.probe import probe, strongest
from cascade_rl.rl_stages.sandbox.outside.program import CommandRun, Program, ProgramRun, Status, TestRun
from cascade_rl.rl_stages.sandbox.tier import Tier

__all__ = [
    "CommandRun",
    "CompilerUnavailable",
    "Folder",
    "Limits",
    "Program",
    "ProgramRun",
    "Sandbox",
    "SandboxFailure",
    "SandboxUnavailable",
    "Status",
    "TestRun",
    "Tier",
    "cores",
    "probe",
    "strongest",
    "tier_on",
]
