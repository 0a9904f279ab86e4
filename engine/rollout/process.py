"""The engine's process: how it is started, spoken to, listened to and ended. It has nothing to save."""

import os
import pickle
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any

from cascade_rl.engine.rollout.protocol import Reply, Settings
from cascade_rl.engine.sample import Rollout

SERVER = "cascade_rl.engine.rollout.server"
REPLY_SECONDS = 600.0
LAST_WORDS_SECONDS = 5.0
TAIL_LINES, TAIL_COLUMNS = 30, 300

# A rank's own rendezvous would make vLLM join the trainer's process group.
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
SAFE_PATH = {"PYTHONSAFEPATH": "1"}  # a folder `kernels/` where we stand is not the package transformers seeks
OFFLINE = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}


class EngineDied(RuntimeError):
    """The engine's process ended or went silent. `restart()` starts a new one.

    `exit_code` is negative for a signal; `pending_ids` are the requests that had not finished.
    """

    def __init__(self, exit_code: int | None, pending_ids: tuple[str, ...], log_path: Path, tail: str):
        self.exit_code = exit_code
        self.pending_ids = pending_ids
        shown = ", ".join(pending_ids[:8]) + (", ..." if len(pending_ids) > 8 else "")
        super().__init__(
            f"the rollout engine died with exit code {exit_code} and {len(pending_ids)} pending requests "
            f"[{shown}]. Last lines of {log_path}:\n{tail}"
        )


class EngineProcess:
    """One running server: its own session, killed with the thread that started it, logging to a file.

    Both ends speak over an inherited socket pair: no port, no key, and end of file the moment either side
    dies. A thread of this process receives, so that the server never waits for a busy trainer.
    """

    def __init__(self, settings: Settings, log_path: Path):
        self.log_path = log_path
        self._rollouts: SimpleQueue[Rollout | None] = SimpleQueue()
        self._replies: SimpleQueue[Reply | None] = SimpleQueue()
        self._scratch = TemporaryDirectory(prefix="rollout-")
        self._connection, theirs = Pipe()
        with theirs, log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", SERVER, str(theirs.fileno())],
                env=_environment() | {"TMPDIR": self._scratch.name},
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

    def send(self, message: Any) -> None:
        """Raises OSError when the server is gone."""
        self._connection.send(message)

    def rollout(self) -> Rollout | None:
        """The next finished sample, waited for; None, for good, once the server is gone and all are out."""
        rollout = self._rollouts.get()
        if rollout is None:
            self._rollouts.put(None)
        return rollout

    def reply(self) -> Reply | None:
        """The answer to the oldest unanswered command; None from a server that died or kept silent."""
        try:
            return self._replies.get(timeout=REPLY_SECONDS)
        except Empty:
            return None

    def kill(self) -> None:
        """End the server and its children now. What had arrived still comes out of `rollout()`."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
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
                (self._rollouts if isinstance(message, Rollout) else self._replies).put(message)
        except (EOFError, OSError, pickle.UnpicklingError):  # the last: cut off in the middle of a message
            self._rollouts.put(None)
            self._replies.put(None)


def _environment() -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in RANK_VARIABLES}
    # Engine and scheduler in the server's own process: one loop, and no second and third process to wake.
    return inherited | SAFE_PATH | OFFLINE | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
