"""Starts, talks to and ends an engine's server process. The process is stateless: nothing has to be saved."""

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any

from cascade_rl.engine.cluster.link import hang_up, send_within
from cascade_rl.engine.cluster.node import NodeLost
from cascade_rl.engine.cluster.rank_environment import SAFE_PATH
from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.rollouts import PART, Request, Rollout
from cascade_rl.engine.rollout.last_parts import LAST_PARTS_SECONDS
from cascade_rl.engine.rollout.protocol import Received, Reply, Settings, StartServer, Submit
from cascade_rl.engine.rollout.seats import Seat
from cascade_rl.engine.rollout.vllm_worker import vllm_cpu_patches

SERVER = "cascade_rl.engine.rollout.server"
LAST_WORDS_SECONDS = 5.0
ORPHAN_SECONDS = 20.0
TAIL_LINES, TAIL_COLUMNS = 30, 300


# With a rank's rendezvous variables, vLLM would join the trainer's process group.
RANK_VARIABLES = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    "TORCHELASTIC_USE_AGENT_STORE",  # an engine would wait for a store that torchrun does not serve
)
OFFLINE = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}


class EngineDied(RuntimeError):
    """An engine's process ended or went silent. `restart()` starts a new one.

    `exit_code` is negative for a signal, `pending_ids` are the requests that it had not finished, `log_path` is
    its log. `silence` says which limit a server exceeded that was ended because it said nothing.
    """

    def __init__(
        self, exit_code: int | None, pending_ids: tuple[str, ...], log_path: Path, tail: str, silence: str = ""
    ):
        self.exit_code = exit_code
        self.pending_ids = pending_ids
        self.log_path = log_path
        shown = ", ".join(pending_ids[:8]) + (", ..." if len(pending_ids) > 8 else "")
        end = f"{silence} and was ended" if silence else "died"
        super().__init__(
            f"the rollout engine {end} with exit code {exit_code} and {len(pending_ids)} pending requests "
            f"[{shown}]. Last lines of {log_path}:\n{tail}"
        )


@dataclass(frozen=True)
class _Server:
    process: subprocess.Popen[bytes]
    scratch: TemporaryDirectory[str]
    owner: int  # process id: a process forked from the owner has no servers


_servers: dict[int, _Server] = {}


def launch_server(theirs: Connection, order: StartServer) -> int:
    """Starts a server on this host that talks over `theirs`; returns its process id. It is killed with this thread.

    Raises UserError for devices that the host does not have, OSError for a log that cannot be written.
    """
    with order.log_path.open("ab") as log:
        environment = _environment(order.cards)
        scratch = TemporaryDirectory(prefix="rollout-")
        server = subprocess.Popen(
            [sys.executable, "-m", order.module, str(theirs.fileno()), str(os.getpid())],
            env=environment | {"TMPDIR": scratch.name},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
    _servers[server.pid] = _Server(server, scratch, os.getpid())
    return server.pid


def end_server(pid: int, seconds: float = 0.0) -> int:
    """Waits `seconds` for a server to end, then kills it. Returns its exit code.

    On return the server and its workers are gone. Workers end with the server. The signal to the whole group is for
    those that have only begun to start. multiprocessing's resource tracker ignores it, and frees the shared memory of
    the dead processes.
    """
    server = _servers[pid]
    with suppress(subprocess.TimeoutExpired):
        server.process.wait(seconds)
    if server.process.poll() is None:
        server.process.kill()
        os.killpg(pid, signal.SIGTERM)
    code = server.process.wait()
    _await_orphans(pid)
    server.scratch.cleanup()
    return code


def end_servers() -> None:
    """Ends all servers of this process, which have lost their trainer; on return they are gone."""
    own = {pid: server for pid, server in _servers.items() if server.owner == os.getpid()}
    for server in own.values():
        server.process.terminate()  # ends at once what has nothing to leave, such as an engine that still starts
    deadline = time.monotonic() + LAST_PARTS_SECONDS
    for pid in own:
        end_server(pid, max(deadline - time.monotonic(), 0.0))


class EngineProcess:
    """The trainer's handle of one running server: a process in its own session on its node that logs to a file.

    index     of this engine among those of the trainer
    seat      its node, and its cards there
    arrivals  where samples and parts of them go, each with this object; then, once, None: the server is gone. What the
              client expects comes there too, without a server
    version   of the weights that it was given; None before the first

    The connection reaches its end of file when either side dies. A thread of this process receives, so that the
    server never waits for a busy trainer. A server that hangs, for instance a stopped process, is known by its silence.
    """

    def __init__(self, settings: Settings, index: int, log_path: Path, arrivals: "Arrivals", seat: Seat):
        self.index, self.log_path = index, log_path
        self.version: int | None = None
        self._node = seat.node
        self._limits = settings.config
        self._answered = False
        self._given = self._returned = 0  # requests, samples
        self._owed: set[str] | None = set() if settings.last_parts else None  # requests whose turns nobody has yet
        self._sending = threading.Lock()  # one thread may submit samples while another has the weights sent
        self._deadline = time.monotonic() + self._limits.start_limit_s
        self._arrivals = arrivals
        self._replies: SimpleQueue[Reply | None] = SimpleQueue()
        order = StartServer(seat.cards, log_path, SERVER)
        self._connection, self.pid = self._node.open(launch_server, order)
        send_within(self._connection, self._limits.silence_limit_s)
        self._reader = threading.Thread(target=self._read, name="rollouts", daemon=True)
        self._reader.start()
        self.send(settings)

    @property
    def alive(self) -> bool:
        """False once its end was noticed here."""
        return self._reader.is_alive()

    @property
    def starting(self) -> bool:
        """Whether it has said nothing yet, and may take longer."""
        return self.alive and not self._answered and not self._silent

    @property
    def stuck(self) -> bool:
        """Whether it has requests, and has neither made a token nor sent anything for as long as it may."""
        return self.alive and self._given > self._returned and self._silent

    @property
    def _silent(self) -> bool:
        return time.monotonic() >= self._deadline

    def send(self, message: Any) -> bool:
        """Sends a message. False if the server is gone, or has read nothing for as long as it may."""
        self._renew()
        if isinstance(message, Submit):
            self._given += len(message.requests)
            if self._owed is not None:
                self._owed |= {request.id for request in message.requests}
        try:
            with self._sending:
                self._connection.send(message)
        except OSError:
            return False
        return True

    def reply(self) -> Reply | None:
        """The answer to the oldest unanswered command; None if the server died, or was silent for too long."""
        self._renew()
        while True:
            with suppress(Empty):
                return self._replies.get(timeout=max(self._deadline - time.monotonic(), 0))
            if self._silent:
                return None

    def received(self, request_id: str) -> None:
        """Says that a turn is in good hands, if the server would leave it to another attempt."""
        if self._owed and request_id in self._owed:
            self._owed.discard(request_id)
            self.send(Received(request_id))

    def hang_up(self) -> None:
        """The server loses its trainer: it leaves what it has drawn, and ends."""
        hang_up(self._connection)

    def kill(self, deadline: float = 0.0) -> None:
        """End the server and its workers: now, or at the deadline if it has something to leave. On return they are
        gone. What has arrived stays in `arrivals`."""
        self._end(max(deadline - time.monotonic(), 0.0) if self._owed else 0.0)

    def obituary(self, pending_ids: tuple[str, ...]) -> EngineDied:
        """The error that reports this server's end. Ends the server if it only hangs."""
        silence = self._silence() if self.alive and self._silent else ""
        code = self._end(LAST_WORDS_SECONDS)
        lines = self.log_path.read_text(errors="replace").splitlines()[-TAIL_LINES:]
        tail = "\n".join(line[:TAIL_COLUMNS] for line in lines)
        return EngineDied(code, pending_ids, self.log_path, tail, silence)

    def _silence(self) -> str:
        if not self._answered:
            return f"had not started after {self._limits.start_limit_s:g} s (rollout.start_limit_s)"
        return f"made no token and sent nothing for {self._limits.silence_limit_s:g} s (rollout.silence_limit_s)"

    def _renew(self) -> None:
        """Once it has started, its time begins anew when it speaks, is spoken to or begins to be waited for."""
        if self._answered:
            self._deadline = time.monotonic() + self._limits.silence_limit_s

    def _end(self, seconds: float = 0.0) -> int | None:
        code = None
        with suppress(NodeLost):  # the server ended with its node
            code = self._node.call(end_server, self.pid, seconds)
        self._reader.join()
        self._connection.close()
        return code

    def _read(self) -> None:
        try:
            while True:
                message = self._connection.recv()
                self._answered = True
                self._renew()
                if isinstance(message, Rollout):
                    self._returned += message.finish != PART
                    self._arrivals.put((self, message))
                elif isinstance(message, Reply):
                    self._replies.put(message)
        except (EOFError, OSError, pickle.UnpicklingError):  # the last: a message was cut off
            self._arrivals.put((self, None))
            self._replies.put(None)


type Arrival = tuple[EngineProcess | None, Rollout | Future[Request | Rollout] | None]
type Arrivals = SimpleQueue[Arrival]


def _await_orphans(group: int) -> None:
    """Waits until the group of a dead server is empty; kills what is left after ORPHAN_SECONDS."""
    deadline = time.monotonic() + ORPHAN_SECONDS
    while orphans := _members(group):
        for pid in orphans if time.monotonic() > deadline else ():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _members(group: int) -> list[int]:
    """The processes of a process group that still run."""
    return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _runs_in(pid, group)]


def _runs_in(pid: int, group: int) -> bool:
    try:
        state, _parent, pgrp = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:3]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return int(pgrp) == group and state not in "ZX"


def environment_of_no_rank() -> dict[str, str]:
    """This process's environment for a child that is not a rank of its job."""
    return {name: value for name, value in os.environ.items() if name not in RANK_VARIABLES} | SAFE_PATH


def _environment(own: range) -> dict[str, str]:
    # Engine and scheduler run in the server's own process: one loop, and no other process to wake.
    offline = OFFLINE | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    return environment_of_no_rank() | offline | _own_devices(own)


def _own_devices(wanted: range) -> dict[str, str]:
    """The CUDA devices of these numbers among those that this process sees."""
    if not vllm_cpu_patches.takes_cards():
        return {}
    from cascade_rl.engine.backend import cards  # a launcher imports this file, and has no use for torch

    told = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = told.split(",") if told else [str(number) for number in range(cards.count())]
    if wanted[-1] >= len(visible):
        raise UserError(
            f"a process with the CUDA devices {wanted[0]} to {wanted[-1]} of its node: expected at least "
            f"{wanted[-1] + 1}, found {len(visible)} (CUDA_VISIBLE_DEVICES={told or 'not set'}): change nproc, "
            "rollout.engines or rollout.tensor"
        )
    return {"CUDA_VISIBLE_DEVICES": ",".join(visible[number] for number in wanted)}
