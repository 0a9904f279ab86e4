"""Runs in a process of its own, as root or as a user: `battery.py attacks|client|command TIER [USER]`."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cascade_rl.rl_stages.sandbox import Limits, Program, Sandbox, Tier, interpreter
from cascade_rl.rl_stages.sandbox.attacks import ATTACKS, STRAY
from cascade_rl.rl_stages.sandbox.host_view import HostView
from cascade_rl.rl_stages.sandbox.probe import why_not

STRAYS = f"import os, time\nos.fork() or os.execv('/bin/sleep', ['{STRAY}', '300'])\ntime.sleep(30)"


def become(user: int) -> None:
    """As setpriv does, with this Python in reach."""
    package = Path(interpreter.__file__).parents[2]
    HostView(user, [*interpreter.prefixes(), str(package)])
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)


def attacks(tier: Tier) -> None:
    """Prints what is wrong with each attack's outcome, or why the tier does not work."""
    reason = why_not(tier)
    if reason:
        print(json.dumps(reason))
        return
    with Sandbox(2, tier) as sandbox, ThreadPoolExecutor(2) as threads:
        runs = threads.map(lambda attack: sandbox.run_program(attack.program, [attack.stdin]), ATTACKS.values())
        found = {name: attack.failure(run.tests[0]) for (name, attack), run in zip(ATTACKS.items(), runs, strict=True)}
    print(json.dumps(found))


def client(tier: Tier) -> None:
    """Until it is killed, a program that leaves a process behind."""
    with Sandbox(1, tier) as sandbox:
        print("started", flush=True)
        while True:
            program = Program(language="python", source=STRAYS, limits=Limits(cpu_seconds=5))
            sandbox.run_program(program, [b""])


def command(tier: Tier) -> None:
    """Until it is killed, a command that leaves a process and files behind."""
    with tempfile.TemporaryDirectory() as workspace, Sandbox(1, tier) as sandbox:
        print(workspace, flush=True)
        script = f"echo x > $TMPDIR/file; (exec -a {STRAY} setsid sleep 300) & exec -a {STRAY} sleep 300"
        sandbox.run_command(["bash", "-c", script], Path(workspace), Limits(cpu_seconds=30))


if __name__ == "__main__":
    if len(sys.argv) > 3:
        become(int(sys.argv[3]))
    globals()[sys.argv[1]](Tier(sys.argv[2]))
