"""The task of one node in a Slurm job: `python -m cascade_rl.launchers.stage.in_job RUN STAGE ... -- RANK_COMMAND`.

It checks the node, starts the ranks of the node under torchrun, and passes a request to stop on to them. On a node that
has engines and no rank it starts the keeper of the node instead, which ends well when the ranks end, however they do.
Its exit code says how the attempt ended. The job's script acts on it:

    0   the stage is done
    2   bad input: final
    3   the stage is done but its gate is closed: final, and jobs that depend on it are cancelled
    4   too many attempts without a newer checkpoint: final
    75  saved on request: queued again
    any other   a crash: queued again

`logs/final_<job>` marks a final end and says why; the job's script and the launcher read it. `logs/began_<job>` holds
the number of the restart whose task began last. With it, the script ends a job whose task never begins, for example
because its container is gone.
Guarantee: no process of a rank outlives this process. If this process itself is killed, Slurm ends the step.
"""

import argparse
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from cascade_rl.engine.cluster.rank_environment import ENGINE_NODES
from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.rollout.last_parts import LAST_PARTS_SECONDS
from cascade_rl.engine.rollout.server_process import SERVER
from cascade_rl.launchers.stage import node_probe
from cascade_rl.launchers.stage.exit_status import USER_ERROR, exit_status
from cascade_rl.launchers.stage.last_words import forget, last_words
from cascade_rl.rl_stages.run.run_folder import RunFolder, StageFolder
from cascade_rl.rl_stages.run.score_gate import GATE_CLOSED
from cascade_rl.rl_stages.run.stop_request import STOP_SIGNAL, STOPPED
from cascade_rl.rl_stages.sandbox.process_tree import descendants, end_descendants

CRASH_LOOP = 4
UNFIT_NODE = 5
KEEPER = "cascade_rl.launchers.stage.keep_node"
FINAL, BEGAN = "final", "began"
OTHERS_S = 2.0  # srun ends all tasks once one fails: let the one with the cause fail first
RENDEZVOUS_S = 900
PORTS = range(20_000, 30_000)
PR_SET_CHILD_SUBREAPER = 36


class StopSignals:
    """Once created, it turns SIGUSR1 and SIGTERM to this process into requests to its ranks to stop."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        signal.pthread_sigmask(signal.SIG_BLOCK, {STOP_SIGNAL})  # inherited by all threads and children
        signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), STOP_SIGNAL))
        threading.Thread(target=self._pass_on, daemon=True).start()

    def _pass_on(self) -> None:
        signal.sigwait({STOP_SIGNAL})
        self.asked.set()
        while True:  # repeated for ranks that start later
            for pid in _ranks():
                with suppress(ProcessLookupError):
                    os.kill(pid, STOP_SIGNAL)
            time.sleep(1)


def _ranks() -> list[int]:
    """The children of this process that have not ended."""
    return [pid for pid in descendants(os.getpid()) if _parent(pid) == os.getpid()]


def _parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None


def main(arguments: Sequence[str]) -> int:
    stop = StopSignals()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    options, command = _parse(arguments)
    os.chdir(options.workdir)
    stage = RunFolder.open(options.run).stage(options.stage)
    if _first_node():
        (stage.logs / f"{BEGAN}_{_job()}").write_text(str(_restart()))
    try:
        code = exit_status(stage.label, lambda: _attempt(stage, options, command, stop))
    finally:
        _await_engines()
        end_descendants(os.getpid())
    if code == USER_ERROR:
        final_mark(stage, _job()).write_text("")  # the reason is in the job's log
    if not _first_node() and code not in (0, STOPPED, USER_ERROR):
        time.sleep(OTHERS_S)
    return code


def _await_engines() -> None:
    """Engines that have lost their rank leave what they have drawn, and end."""
    deadline = time.monotonic() + LAST_PARTS_SECONDS
    while any(map(_is_engine, descendants(os.getpid()))) and time.monotonic() < deadline:
        time.sleep(0.1)


def _is_engine(pid: int) -> bool:
    try:
        return SERVER.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def _parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, Sequence[str]]:
    split = list(arguments).index("--")
    parser = argparse.ArgumentParser(prog="in_job")
    parser.add_argument("run", type=Path)
    parser.add_argument("stage")
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--nproc-per-node", type=int, required=True, help="on nodes that have ranks")
    parser.add_argument("--engine-nodes", type=int, default=0, help="without ranks, the last ones")
    parser.add_argument("--engine-cards", type=int, default=0, help="of a node with engines, those that no rank shares")
    parser.add_argument("--devices", choices=("gpu", "cpu"), required=True)
    parser.add_argument("--attempts", type=int, required=True)
    return parser.parse_args(arguments[:split]), arguments[split + 1 :]


def _attempt(stage: StageFolder, options: argparse.Namespace, command: Sequence[str], stop: StopSignals) -> int:
    if stage.done:
        return _gate(stage)
    if _first_node() and (failed := _fruitless_attempts(stage)) >= options.attempts:
        step = stage.last_step()
        _mark_final(stage, f"{failed} attempts ended without a checkpoint newer than that of step {step}")
        return CRASH_LOOP
    if _first_node():
        stage.record_event("attempt", from_step=stage.last_step(), job=_job(), restart=_restart())
        forget(stage.logs)
    if not _fit(stage, options):
        return UNFIT_NODE
    code = STOPPED if stop.asked.is_set() else _run(options, command)
    if _first_node():
        stage.record_event("ended", exit_code=code, message=last_words(stage.logs))
        code = code or _end(stage)
    return code


def _end(stage: StageFolder) -> int:
    if not stage.done:
        print(f"{stage.label}: all ranks ended without an error, but the stage is not marked done", file=sys.stderr)
        return 1
    return _gate(stage)


def _gate(stage: StageFolder) -> int:
    closed = [str(verdict) for verdict in stage.gate() if not verdict.passed]
    if closed and _first_node():
        _mark_final(stage, f"gate closed: {'; '.join(closed)}. Change the stage, or what its gate allows")
    return GATE_CLOSED if closed else 0


def _mark_final(stage: StageFolder, reason: str) -> None:
    print(f"{stage.label}: {reason}. Not queued again", file=sys.stderr, flush=True)
    final_mark(stage, _job()).write_text(reason)


def final_mark(stage: StageFolder, job: str) -> Path:
    """The file whose existence marks the end of a job as final. Its text says why."""
    return stage.logs / f"{FINAL}_{job}"


def _fruitless_attempts(stage: StageFolder) -> int:
    """How many earlier attempts of this job began at the step where this one begins."""
    attempts = [row for row in stage.events.rows() if row["event"] == "attempt" and row.get("job") == _job()]
    return sum(row["from_step"] == stage.last_step() for row in attempts)


def _fit(stage: StageFolder, options: argparse.Namespace) -> bool:
    state = node_probe.observe(options.run, _head(), options.devices == "gpu")
    problems = list(state.problems(_cards(options), _nodes()))
    node_probe.record(state, stage.logs, job=_job(), restart=_restart(), problems=problems)
    for problem in problems:
        print(f"{stage.label}: node {state.node}: {problem}.", file=sys.stderr, flush=True)
    return not problems


def _cards(options: argparse.Namespace) -> int:
    """That the ranks and the engines of this node need, one each."""
    if _keeper(options) is not None:
        return int(options.engine_cards)
    beside = 0 if options.engine_nodes else options.engine_cards
    return int(options.nproc_per_node + beside)


def _keeper(options: argparse.Namespace) -> int | None:
    """The number of this node among those without ranks; None if it has some."""
    number = int(os.environ["SLURM_NODEID"]) - (_nodes() - options.engine_nodes)
    return None if number < 0 else number


def _run(options: argparse.Namespace, command: Sequence[str]) -> int:
    """The ranks of this node, or its keeper, to their end."""
    number = _keeper(options)
    if number is None:
        os.environ[ENGINE_NODES] = str(options.engine_nodes)
        return _torchrun(options, command)
    return subprocess.call([sys.executable, "-m", KEEPER, str(options.run), str(number), _head(), str(_port())])


def _torchrun(options: argparse.Namespace, command: Sequence[str]) -> int:
    """Runs the ranks of this node. Returns their exit code: if they fail, that of the rank with the cause."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    if not command:
        raise UserError("in_job: expected a command after --, found none.")
    try:
        torchrun(
            [
                *("--nnodes", str(_nodes() - options.engine_nodes), "--node-rank", os.environ["SLURM_NODEID"]),
                *("--nproc-per-node", str(options.nproc_per_node), "--max-restarts", "0"),
                *("--rdzv-backend", "static", "--rdzv-id", f"{_job()}.{_restart()}"),
                *("--rdzv-conf", f"timeout={RENDEZVOUS_S}"),
                *("--master-addr", _head(), "--master-port", str(_port())),
                *("--signals-to-handle", "SIGINT,SIGHUP,SIGQUIT", "--no-python", *command),
                *(str(options.run), options.stage),
            ]
        )
    except ChildFailedError as failed:
        codes = [failure.exitcode for failure in failed.failures.values()]
        first: int = failed.get_first_failure()[1].exitcode
        code = USER_ERROR if USER_ERROR in codes else first
        return code if code > 0 else 128 - code
    return 0


# Variables that Slurm and the job's script set.


def _job() -> str:
    return os.environ["SLURM_JOB_ID"]


def _port() -> int:
    return PORTS[int(_job()) % len(PORTS)]


def _restart() -> int:
    return int(os.environ.get("SLURM_RESTART_COUNT", "0"))


def _nodes() -> int:
    return int(os.environ["SLURM_JOB_NUM_NODES"])


def _first_node() -> bool:
    return os.environ["SLURM_NODEID"] == "0"


def _head() -> str:
    return os.environ["CASCADE_HEAD_NODE"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
