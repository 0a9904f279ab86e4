"""Runs in a process of its own: `battery.py attacks|client|grades TIER [user|container|old|old root]`, or
`battery.py kills FIRST COUNT`."""

from __future__ import annotations

import ctypes
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cascade_rl.launchers.cli.doctor import graded, graded_forgery
from cascade_rl.rl_stages.rewards.adapters import python_function
from cascade_rl.rl_stages.rewards.swe.grading import run_tests
from cascade_rl.rl_stages.rewards.swe.repository import Repository
from cascade_rl.rl_stages.rewards.verifiers.math import MathVerifier
from cascade_rl.rl_stages.sandbox import Limits, Program, Sandbox, Tier, process_tree
from cascade_rl.rl_stages.sandbox.outside.attacks import ATTACKS, STRAY
from cascade_rl.rl_stages.sandbox.outside.ordinary_user import become, reach
from cascade_rl.rl_stages.sandbox.outside.probe import why_not

PR_SET_CHILD_SUBREAPER, PR_CAPBSET_DROP, CAP_SYS_PTRACE, CAP_SYS_ADMIN = 36, 24, 19, 21
USER = 61234
STRAYS = f"import os, time\nos.fork() or os.execv('/bin/sleep', ['{STRAY}', '3000'])\ntime.sleep(30)"


def become_container() -> None:
    """Root whose workers may not mount nor look into processes of others, as in Docker's default."""
    reach(USER)
    for capability in (CAP_SYS_ADMIN, CAP_SYS_PTRACE):
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


def attacks(tier: Tier, **lowered: int) -> None:
    """Prints what is wrong with each attack's outcome, or why the tier does not work."""
    reason = why_not(tier)
    if reason:
        print(json.dumps(reason))
        return
    with Sandbox(2, tier, **lowered) as sandbox, ThreadPoolExecutor(2) as threads:
        found = dict(zip(ATTACKS, threads.map(lambda attack: attack.tried(sandbox), ATTACKS.values()), strict=True))
    print(json.dumps(found))


def grades(tier: Tier, **lowered: int) -> None:
    """Prints the scores of a golden patch, a wrong one and a forgery, or why the tier does not work."""
    reason = why_not(tier)
    if reason:
        print(json.dumps(reason))
        return
    with Sandbox(1, tier, **lowered) as sandbox:
        print(json.dumps([verdict.score for verdict in (*graded(sandbox), graded_forgery(sandbox))]))


def client(tier: Tier) -> None:
    """Until it is killed, a program that leaves a process behind."""
    with Sandbox(1, tier) as sandbox:
        print("started", flush=True)
        while True:
            program = Program(language="python", source=STRAYS, limits=Limits(cpu_seconds=5))
            sandbox.run_program(program, [b""])


def command(tier: Tier) -> None:
    """A command in a workspace that leaves processes and files behind."""
    with Sandbox(1, tier) as sandbox:
        workspace = sandbox.folder({})
        script = f"echo x > $TMPDIR/file; (exec -a {STRAY} setsid sleep 3000) & exec -a {STRAY} sleep 3000"
        sandbox.run_command(["bash", "-c", script], workspace, Limits(cpu_seconds=30))


def grading(tier: Tier) -> None:
    """Patches that are tested, one after another."""
    test = "import time\ndef test_it(tmp_path): (tmp_path / 'x').write_text('1'); time.sleep(0.1)"
    with Sandbox(1, tier) as sandbox:
        while True:
            run_tests(Repository({"a.py": ""}, {"test_a.py": test}), sandbox)


def hanging_math(_: Tier) -> None:
    task: Any = SimpleNamespace(metadata={"expected_answer": "1!"})
    MathVerifier(deadline_seconds=60.0)(task, r"\boxed{((((10!)!)!)!)}")


def hanging_reward(_: Tier) -> None:
    python_function.whole("rewards:hangs")(SimpleNamespace(metadata={}, messages=()), "a")  # type: ignore[arg-type]


Client = tuple[Callable[[Tier], None], Tier, int | None, float]
# what is killed, in which tier, as which user, within how many seconds; a worker of maths takes one to start
CLIENTS: list[Client] = [
    (client, Tier.NAMESPACES, None, 0.6),
    (client, Tier.LANDLOCK, USER, 0.6),
    (command, Tier.NAMESPACES, None, 0.4),
    (command, Tier.LANDLOCK, USER, 0.4),
    (grading, Tier.NAMESPACES, None, 0.8),
    (hanging_reward, Tier.NAMESPACES, None, 0.3),
    (client, Tier.NAMESPACES, USER, 0.6),
    (client, Tier.LANDLOCK, None, 0.6),
    (command, Tier.NAMESPACES, USER, 0.4),
    (hanging_math, Tier.NAMESPACES, None, 3.0),
]


def kills(first: int, count: int) -> None:
    """Prints, of each client that was killed at a random moment, how many processes it had and what is left of them."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # whoever loses his parent is a child of this process
    print(json.dumps([kill_at_random(number) for number in range(first, first + count)]))


def kill_at_random(number: int) -> tuple[int, list[str]]:
    work, tier, user, seconds = CLIENTS[number % len(CLIENTS)]
    pid = os.fork()
    if pid == 0:
        try:
            become(user) if user and os.geteuid() == 0 else None
            work(tier)
        finally:
            os._exit(1)
    while number // len(CLIENTS) % 2 and not process_tree.descendants(pid):  # every other time, it has a worker
        assert os.waitpid(pid, os.WNOHANG) == (0, 0), f"{work.__name__} ended by itself"
        time.sleep(0.01)
    time.sleep(random.Random(number).random() * seconds)
    below = process_tree.descendants(pid)
    os.kill(pid, signal.SIGKILL)
    return len(below), left_after(240.0)


def left_after(seconds: float) -> list[str]:
    """Command lines of this process's descendants, once there are none or the time is over."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.02)
        except ChildProcessError:
            return []
    return [process_tree_line(pid) for pid in process_tree.descendants(os.getpid())]


def process_tree_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


if __name__ == "__main__":
    name, first, *rest = sys.argv[1:]
    if name == "kills":
        kills(int(first), int(rest[0]))
    else:
        if rest == ["container"]:
            become_container()
        elif rest and rest != ["old root"] and os.geteuid() == 0:
            become(USER)
        lowered = {"landlock_abi": 1} if rest and rest[0].startswith("old") else {}
        {"attacks": attacks, "client": client, "grades": grades}[name](Tier(first), **lowered)
