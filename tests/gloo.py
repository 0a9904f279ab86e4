"""Forked ranks: one function on several ranks of a process group on this machine, nothing imported twice.

`import torch, megatron.core` takes about 7 s and 360 MB, so ranks are forked from the test process, which has
imported everything once. A test module therefore imports what its ranks need at its top, and nothing before
the fork may have started a thread pool (`tests/conftest.py` sets one thread) or CUDA.
"""

import faulthandler
import multiprocessing
import os
import pickle
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any, NoReturn

from cascade_rl.engine.core.parent_death import die_with_parent
from cascade_rl.launchers.local.held_port import held_port

_FORK = multiprocessing.get_context("fork")

type Work = tuple[Callable[..., Any], tuple[Any, ...]]


class RankFailed(RuntimeError):
    """A rank died, hung, or raised something that cannot be pickled."""


def run_ranks[T](world_size: int, fn: Callable[..., T], *args: Any, timeout_s: float = 600.0) -> list[T]:
    """`fn(*args)` on `world_size` forked ranks; returns their results in rank order.

    Each rank finds RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its
    environment and makes its process group itself. `fn` and `args` reach the ranks by fork (closures and
    models are fine), results come back by pickle.

    Raises the first exception of any rank, of its own type, with the rank's traceback as a note; `RankFailed`
    if a rank dies, or if `timeout_s` seconds pass (the stack of each rank is then on stderr). Every rank and
    all that it has started has been killed when this returns or raises, and every rank reaped.
    """
    with held_port() as port:
        ranks = [_start((fn, args), environment) for environment in _environments(world_size, port)]
        try:
            return _collect(ranks, time.monotonic() + timeout_s, timeout_s)
        finally:
            for process, reader in ranks:
                _end(process)
                reader.close()


def _environments(world_size: int, port: int) -> list[dict[str, str]]:
    shared = {
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    return [shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world_size)]


def _start(work: Work, environment: dict[str, str]) -> tuple[ForkProcess, Connection]:
    reader, writer = _FORK.Pipe(duplex=False)
    process = _FORK.Process(target=_rank_main, args=(work, environment, writer))
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        # Python warns of threads it does not know; torch's are idle with one thread set.
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    writer.close()
    return process, reader


def _rank_main(work: Work, environment: dict[str, str], writer: Connection) -> NoReturn:
    # A group of its own, so that what the rank starts (checkpoint writers, say) is ended with it.
    os.setpgid(0, 0)
    die_with_parent()
    # Not dump_traceback_later: where pytest's faulthandler_timeout has taken its lock, a fork waits forever.
    faulthandler.register(signal.SIGUSR1, file=2)
    os.environ.update(environment)
    fn, args = work
    try:
        answer = pickle.dumps((fn(*args), None))
    except BaseException as error:
        answer = pickle.dumps((None, _portable(error)))
    sys.stdout.flush()
    sys.stderr.flush()
    writer.send_bytes(answer)
    # Stay until all ranks are done: an early exit breaks the others' sockets and hides the first error.
    while True:
        signal.pause()


def _portable(error: BaseException) -> BaseException:
    """The error as the parent can raise it: same type if it pickles, with this rank's traceback as a note."""
    note = f"on rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}:\n{traceback.format_exc()}"
    try:
        error = pickle.loads(pickle.dumps(error))
    except Exception:
        error = RankFailed(repr(error))
    error.add_note(note)
    return error


def _collect(ranks: list[tuple[ForkProcess, Connection]], deadline: float, timeout_s: float) -> list[Any]:
    results: dict[int, Any] = {}
    while len(results) < len(ranks):
        pending = {reader: rank for rank, (_, reader) in enumerate(ranks) if rank not in results}
        ready = wait(list(pending), timeout=deadline - time.monotonic())
        if not ready:
            _show_stacks(ranks)
            raise RankFailed(f"ranks {sorted(pending.values())} gave no result within {timeout_s} s")
        for reader in ready:
            rank = pending[reader]
            results[rank], error = _receive(reader, rank, ranks[rank][0])
            if error is not None:
                raise error
    return [results[rank] for rank in range(len(ranks))]


def _show_stacks(ranks: list[tuple[ForkProcess, Connection]]) -> None:
    for process, _ in ranks:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGUSR1)
        time.sleep(0.5)  # one writes to stderr at a time, before all are killed


def _receive(reader: Connection, rank: int, process: ForkProcess) -> tuple[Any, BaseException | None]:
    try:
        return pickle.loads(reader.recv_bytes())
    except EOFError:
        process.join()
        return None, RankFailed(f"rank {rank} exited with code {process.exitcode} and gave no result")


def _end(process: ForkProcess) -> None:
    assert process.pid is not None
    for kill in (os.killpg, os.kill):  # the group does not exist yet if the rank was only just forked
        try:
            kill(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.join()
    process.close()
