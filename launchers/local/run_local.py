"""Runs a cascade on this machine: the stages in order, one process per rank.

Guarantees: No process outlives the launcher, however either ends, but for an engine that has samples: it takes up to
LAST_PARTS_SECONDS to leave them (engine/rollout/last_parts.py). A finished stage is skipped. An unfinished one resumes
from its newest complete checkpoint. If a rank fails, its exit code is the exit code of the run.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.text import Text

from cascade_rl.engine.cluster.rank_environment import RANK_ENVIRONMENT
from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.parent_death import die_with_parent
from cascade_rl.launchers.local.held_port import held_port
from cascade_rl.launchers.local.inputs import check_inputs
from cascade_rl.launchers.local.sandbox_tier import tier_line
from cascade_rl.launchers.report.score_table import score_line, score_table
from cascade_rl.launchers.stage.exit_status import FULL, USER_ERROR
from cascade_rl.launchers.stage.last_words import forget, last_words
from cascade_rl.launchers.stage.log_tail import log_tail
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.stage import Stage
from cascade_rl.rl_stages.run.known_data import KnownData
from cascade_rl.rl_stages.run.run_folder import INPUTS, RunFolder, StageFolder
from cascade_rl.rl_stages.run.score_gate import GATE_CLOSED
from cascade_rl.rl_stages.run.upgrade.kept_folders import Agree

POLL_S = 0.05
OTHERS_S = 2.0  # a failing rank makes others fail: wait for the one with the cause
TERM_S = 5.0
TEE_S = 1.0  # a process that a rank left behind may still hold its stderr


def run_cascade(
    cascade: Cascade, runs: Path, stage_command: Sequence[str], chosen: Sequence[Stage], agree: Agree
) -> int:
    """Run the `chosen` stages of `runs/<name>`, or go on with them; returns the exit code.

    Raises UserError for bad input, before anything is written, for work that `agree` does not let be set aside, and for
    a stage that needs one that is not done.
    """
    console = Console(highlight=False)
    known = KnownData.read(runs / cascade.name / INPUTS)
    left_out = check_inputs(cascade, known)
    for line in filter(None, (tier_line(cascade, chosen), *left_out)):
        console.print(line, soft_wrap=True)
    with RunFolder.claim(runs / cascade.name, cascade, known, agree) as (run, lock):
        for stage in map(run.stage, (config.name for config in chosen)):
            _require_dependencies(run, stage)
            code = 0 if _skip(stage, console) else _run_stage(run, stage, stage_command, lock, console)
            code = code or _gate(stage, console)
            if code:
                _say(console, stage, f"failed with exit code {code}. Run folder: {run.root}")
                return code
        for summary in filter(lambda summary: summary.before, run.record()):
            console.print(score_table(summary))
        console.print(f"Run folder: {run.root}", soft_wrap=True)
    return 0


def _say(console: Console, stage: StageFolder, text: str | Text) -> None:
    console.print(Text.assemble((stage.label, "bold"), ": ", text), soft_wrap=True)


def _skip(stage: StageFolder, console: Console) -> bool:
    if stage.done:
        _say(console, stage, "done before, skipped")
    return stage.done


def _require_dependencies(run: RunFolder, stage: StageFolder) -> None:
    missing = [other.config.name for other in run.dependencies(stage) if not other.done]
    if missing:
        raise UserError(
            f"{stage.label}: expected the stages that it builds on to be done, found {', '.join(missing)} unfinished "
            f"in {run.root}. Run them first, or start with --from {missing[0]}."
        )


def _gate(stage: StageFolder, console: Console) -> int:
    failed = [verdict for verdict in stage.gate() if not verdict.passed]
    for verdict in failed:
        _say(console, stage, f"gate closed: {verdict}. Change the stage, or what its gate allows")
    return GATE_CLOSED if failed else 0


def _run_stage(run: RunFolder, stage: StageFolder, command: Sequence[str], lock: int, console: Console) -> int:
    _say(console, stage, _beginning(stage))
    stage.record_event("attempt", from_step=stage.last_step())
    forget(stage.logs)
    nproc = run.cascade.layout(stage.config).nproc
    with Ranks([*command, str(run.root), stage.config.name], nproc, stage.logs, lock) as ranks:
        failure = ranks.wait()
    code = failure.code if failure else 0
    stage.record_event("ended", exit_code=code, message=failure.message(stage.logs) if failure else "")
    if failure:
        _say(console, stage, failure.describe(stage.logs))
        return code
    if not stage.done:
        _say(console, stage, "all ranks ended without an error, but the stage is not marked done")
        return 1
    run.record()
    summary = stage.summary()
    _say(console, stage, Text(": ").join(filter(None, (Text(f"done in {summary.seconds:.0f} s"), score_line(summary)))))
    return 0


def _beginning(stage: StageFolder) -> str:
    step, steps = stage.last_step(), stage.config.steps
    if step:
        return f"going on from step {step} of {steps}"
    again = " again, no complete step was kept" if stage.events.rows() else ""
    return f"starting{again}: {stage.config.batch_terms}"


@dataclass(frozen=True)
class Failure:
    """The rank that failed, and its `Popen.returncode`: an exit code, or a negative signal number."""

    rank: int
    returncode: int

    @property
    def code(self) -> int:
        """Exit code as a shell reports it."""
        return self.returncode if self.returncode > 0 else 128 - self.returncode

    @property
    def how(self) -> str:
        killed = self.returncode < 0
        end = (
            f"was killed by {signal.Signals(-self.returncode).name}" if killed else f"ended with exit code {self.code}"
        )
        return f"rank {self.rank} {end}"

    def describe(self, logs: Path) -> str:
        return self.how if self.rank == 0 else f"{self.how}\n{log_tail(_log(logs, self.rank))}"

    def message(self, logs: Path) -> str:
        """What a rank said last, or how this one ended, with the last line of its log."""
        last = log_tail(_log(logs, self.rank), lines=1)
        return last_words(logs) or f"{self.how}{': ' if last else ''}{last}"


class Ranks:
    """The processes of one stage. A context manager that kills all remaining processes at its end.

    Rank 0 writes to the terminal, and its errors to `logs/rank_0.log` too; the others write to `logs/rank_N.log`. Each
    rank leads a process group of its own. The kernel kills the rank when the launcher dies, so no engine outlives a
    failure by long (AReaL#622, vllm#16259).
    """

    def __init__(self, command: Sequence[str], nproc: int, logs: Path, lock: int) -> None:
        self.command, self.nproc, self.logs, self.lock = command, nproc, logs, lock
        self.processes: list[subprocess.Popen[bytes]] = []
        self.tees: list[threading.Thread] = []

    def __enter__(self) -> "Ranks":
        with ExitStack() as stack:
            port = stack.enter_context(held_port())
            stack.callback(self.stop)
            for rank in range(self.nproc):
                self.processes.append(self._start(rank, port))
            self._end = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.close()

    def wait(self) -> Failure | None:
        """Wait for all ranks, or for the first failure. Prefers a user error to the failures that it caused."""
        while not self._failures() and self._running():
            time.sleep(POLL_S)
        if self._failures():
            self._wait_until_ended(OTHERS_S)
        return min(self._failures(), key=lambda failure: failure.code != USER_ERROR, default=None)

    def stop(self) -> None:
        """End every process group by SIGTERM, then SIGKILL."""
        if self._running():
            self._signal(signal.SIGTERM)
            self._wait_until_ended(TERM_S)
        self._signal(signal.SIGKILL)
        for process in self.processes:
            process.wait()
        for tee in self.tees:
            tee.join(TEE_S)

    def _start(self, rank: int, port: int) -> subprocess.Popen[bytes]:
        env = {
            **RANK_ENVIRONMENT,
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(self.nproc),
            "LOCAL_WORLD_SIZE": str(self.nproc),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        with _log(self.logs, rank).open("wb") as log:
            process = subprocess.Popen(
                self.command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log if rank else None,
                stderr=log if rank else subprocess.PIPE,
                process_group=0,
                pass_fds=(self.lock,),
                preexec_fn=_die_with(os.getpid()),
            )
        if process.stderr:
            self.tees.append(threading.Thread(target=_tee, args=(process.stderr, _log(self.logs, rank)), daemon=True))
            self.tees[-1].start()
        return process

    def _running(self) -> bool:
        return any(process.poll() is None for process in self.processes)

    def _failures(self) -> list[Failure]:
        codes = [process.poll() for process in self.processes]
        return [Failure(rank, code) for rank, code in enumerate(codes) if code]

    def _wait_until_ended(self, patience_s: float) -> None:
        deadline = time.monotonic() + patience_s
        while self._running() and time.monotonic() < deadline:
            time.sleep(POLL_S)

    def _signal(self, number: signal.Signals) -> None:
        for process in self.processes:
            try:
                os.killpg(process.pid, number)
            except ProcessLookupError:  # the whole group has ended
                continue


def _die_with(launcher: int) -> Callable[[], None]:
    """Runs in the child before exec: the child gets SIGKILL when the launcher ends, even if it already has."""

    def ask_kernel() -> None:
        die_with_parent()
        if os.getppid() != launcher:
            os._exit(1)

    return ask_kernel


def _tee(source: IO[bytes], log: Path) -> None:
    """Copies each line to the terminal and, where its disk has room, to the log."""
    with source, log.open("ab", buffering=0) as file:
        for line in source:
            sys.stderr.buffer.write(line)
            sys.stderr.flush()
            try:
                file.write(line)
            except OSError as error:
                if error.errno not in FULL:
                    raise


def _log(logs: Path, rank: int) -> Path:
    return logs / f"rank_{rank}.log"
