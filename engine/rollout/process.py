"""The engine's process: how it is started, spoken to, listened to and ended. It has nothing to save."""

import ctypes
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any

from cascade_rl.engine.errors import UserError
from cascade_rl.engine.rollout import vllm_cpu_patches
from cascade_rl.engine.rollout.protocol import Reply, Settings
from cascade_rl.engine.sample import Request, Rollout

SERVER = "cascade_rl.engine.rollout.server"
REPLY_SECONDS = 600.0
LAST_WORDS_SECONDS = 5.0
ORPHAN_SECONDS = 20.0
TAIL_LINES, TAIL_COLUMNS = 30, 300

PR_SET_PDEATHSIG = 1

# A rank's own rendezvous would make vLLM join the trainer's process group.
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
SAFE_PATH = {"PYTHONSAFEPATH": "1"}  # a folder `kernels/` where we stand is not the package transformers seeks
OFFLINE = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}


class EngineDied(RuntimeError):
    """An engine's process ended or went silent. `restart()` starts a new one.

    `exit_code` is negative for a signal; `pending_ids` are the requests that it had not finished; `log_path` is
    its log.
    """

    def __init__(self, exit_code: int | None, pending_ids: tuple[str, ...], log_path: Path, tail: str):
        self.exit_code = exit_code
        self.pending_ids = pending_ids
        self.log_path = log_path
        shown = ", ".join(pending_ids[:8]) + (", ..." if len(pending_ids) > 8 else "")
        super().__init__(
            f"the rollout engine died with exit code {exit_code} and {len(pending_ids)} pending requests "
            f"[{shown}]. Last lines of {log_path}:\n{tail}"
        )


class EngineProcess:
    """One running server: its own session, killed with the thread that started it, logging to a file.

    index     of this engine among those of the trainer; says which devices are its own
    arrivals  where finished samples go, each with this object; then, once, None: the server is gone. What the client
              expects comes there too, without a server
    version   of the weights that it was given; None before the first
    paused    whether it was told to stand still

    Both ends speak over an inherited socket pair: no port, no key, and end of file the moment either side
    dies. A thread of this process receives, so that the server never waits for a busy trainer.
    """

    def __init__(self, settings: Settings, index: int, log_path: Path, arrivals: "Arrivals"):
        self.index, self.log_path = index, log_path
        self.version: int | None = None
        self.paused = False
        self._arrivals = arrivals
        self._replies: SimpleQueue[Reply | None] = SimpleQueue()
        self._scratch = TemporaryDirectory(prefix="rollout-")
        self._connection, theirs = Pipe()
        with theirs, log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", SERVER, str(theirs.fileno())],
                env=_environment(index, settings.config.tensor) | {"TMPDIR": self._scratch.name},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, name="rollouts", daemon=True)
        self._reader.start()
        self.send(settings)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def send(self, message: Any) -> bool:
        """Whether the server is still there to read it."""
        try:
            self._connection.send(message)
        except OSError:
            return False
        return True

    def reply(self) -> Reply | None:
        """The answer to the oldest unanswered command; None from a server that died or kept silent."""
        try:
            return self._replies.get(timeout=REPLY_SECONDS)
        except Empty:
            return None

    def kill(self) -> None:
        """End the server and its workers now; on return they are gone. What had arrived stays in `arrivals`.

        The workers follow the server. The signal to the whole group is for those that have only begun to start;
        multiprocessing's resource tracker ignores it and gives back the shared memory of the dead.
        """
        if self.alive:
            self._process.kill()
            os.killpg(self._process.pid, signal.SIGTERM)
        self._process.wait()
        _await_orphans(self._process.pid)
        self._reader.join()
        self._connection.close()
        self._scratch.cleanup()

    def obituary(self, pending_ids: tuple[str, ...]) -> EngineDied:
        """The error that tells of this server's end; ends it if it merely hangs."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(LAST_WORDS_SECONDS)
        self.kill()
        lines = self.log_path.read_text(errors="replace").splitlines()[-TAIL_LINES:]
        tail = "\n".join(line[:TAIL_COLUMNS] for line in lines)
        return EngineDied(self._process.returncode, pending_ids, self.log_path, tail)

    def _read(self) -> None:
        try:
            while True:
                message = self._connection.recv()
                if isinstance(message, Rollout):
                    self._arrivals.put((self, message))
                else:
                    self._replies.put(message)
        except (EOFError, OSError, pickle.UnpicklingError):  # the last: cut off in the middle of a message
            self._arrivals.put((self, None))
            self._replies.put(None)


type Arrivals = SimpleQueue[tuple[EngineProcess | None, Rollout | Future[Request | Rollout] | None]]


def die_with_parent() -> None:
    """Kill this process when the thread that started it ends, however it ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _await_orphans(group: int) -> None:
    """Until the group of a dead server is empty; what outlives ORPHAN_SECONDS is killed."""
    deadline = time.monotonic() + ORPHAN_SECONDS
    while orphans := _members(group):
        for pid in orphans if time.monotonic() > deadline else ():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _members(group: int) -> list[int]:
    """Processes of a process group that still run."""
    return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _runs_in(pid, group)]


def _runs_in(pid: int, group: int) -> bool:
    try:
        state, _parent, pgrp = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:3]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return int(pgrp) == group and state not in "ZX"


def _environment(index: int, devices: int) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in RANK_VARIABLES}
    # Engine and scheduler in the server's own process: one loop, and no second and third process to wake.
    own = SAFE_PATH | OFFLINE | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    return inherited | own | _own_devices(index, devices)


def _own_devices(index: int, count: int) -> dict[str, str]:
    """CUDA devices `count * index` and those that follow, of the ones this process sees."""
    if vllm_cpu_patches.installed():
        return {}
    wanted = range(count * index, count * (index + 1))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if visible == [""]:
        return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, wanted))}
    if wanted[-1] >= len(visible):
        raise UserError(
            f"engine {index} of {count} CUDA devices: expected at least {wanted[-1] + 1} devices, found "
            f"CUDA_VISIBLE_DEVICES={','.join(visible)}: change rollout.engines or rollout.tensor"
        )
    return {"CUDA_VISIBLE_DEVICES": ",".join(visible[device] for device in wanted)}
