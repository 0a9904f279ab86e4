"""A program or command that attacks its box. One that succeeds prints BREACH, or harms a victim."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import dataclass, replace

from cascade_rl.rl_stages.sandbox.errors import SandboxFailure
from cascade_rl.rl_stages.sandbox.limits import Limits
from cascade_rl.rl_stages.sandbox.outside.pool import Sandbox
from cascade_rl.rl_stages.sandbox.outside.program import Program, Status
from cascade_rl.rl_stages.sandbox.outside.victims import victims

LIMITS = Limits(cpu_seconds=0.3, memory_mib=1024, file_mib=4)
PATIENT = replace(LIMITS, cpu_seconds=30.0)  # for what must be noticed or come to its end on a busy machine too
OK, ERROR, TIME, MEMORY, OUTPUT = Status
ENDED = frozenset({OK, ERROR})


@dataclass(frozen=True)
class Attack:
    """`statuses` are the acceptable outcomes."""

    source: str
    statuses: frozenset[Status]
    stdin: bytes = b"1 2\n"
    on_victims: bool = False
    is_command: bool = False
    turns: int = 1  # of a command, in one folder
    limits: Limits = LIMITS

    def tried(self, sandbox: Sandbox) -> str | None:
        """What is wrong with the outcome; None if the attack was contained."""
        with victims() if self.on_victims else nullcontext() as harmed:
            try:
                failure = self._failure(*self._outcome(sandbox, harmed.names if harmed else self.stdin))
            except SandboxFailure as lost:
                return f"it has no score: {lost}"
            return failure or (harmed.harm() if harmed else None)

    def _outcome(self, sandbox: Sandbox, stdin: bytes) -> tuple[Status, str]:
        """The status, and all output."""
        if self.is_command:
            return self._outcome_of_commands(sandbox, stdin)
        test = sandbox.run_program(Program(language="python", source=self.source, limits=self.limits), [stdin]).tests[0]
        return test.status, test.output.decode(errors="replace") + test.errors

    def _outcome_of_commands(self, sandbox: Sandbox, stdin: bytes) -> tuple[Status, str]:
        with sandbox.folder({}) as folder:
            for _ in range(self.turns):
                run = sandbox.run_command([sys.executable, "-c", self.source], folder, self.limits, stdin)
        left = "\nBREACH its folder is still there" if folder.path.exists() else ""
        return run.status, run.output + left

    def _failure(self, status: Status, output: str) -> str | None:
        breaches = [line for line in output.splitlines() if line.startswith("BREACH")]
        if breaches:
            return breaches[0]
        return None if status in self.statuses else f"{status}: {output[-200:]}"


def attack(source: str, *statuses: Status, stdin: bytes = b"1 2\n") -> Attack:
    return Attack(source, frozenset(statuses or ENDED), stdin)
