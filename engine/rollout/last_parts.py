"""What engines have drawn of samples that their trainer has not whole, when they lose it: a file of each engine.

A trainer that ends on request hangs up on its engines. One that is killed leaves them no other sign. In both cases an
engine writes its file and ends. The next attempt takes the files into its ledger, and the folder of the one before
away: an engine that is late finds none, and what it has is drawn again.
"""

import os
import pickle
import shutil
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp

from cascade_rl.engine.core.rollouts import Request, Rollout

LAST_PARTS_SECONDS = 20.0  # that an engine has for it; Slurm gives a job 30 s between SIGTERM and SIGKILL
UNFINISHED, TAKEN = ".unfinished", ".taken"

LastParts = tuple[Request, Sequence[Rollout]]
"""A request, and parts of its turn, one after another."""


def new_folder(folder: Path) -> Path:
    """A folder in `folder` for the engines of one attempt."""
    folder.mkdir(parents=True, exist_ok=True)
    return Path(mkdtemp(dir=folder))


def leave(folder: Path, drawn: Sequence[LastParts]) -> None:
    """Writes the file of this process, whole or not at all. Does nothing if the next attempt has begun."""
    path = folder / f"{socket.gethostname()}-{os.getpid()}"
    unfinished = path.with_name(path.name + UNFINISHED)
    with suppress(FileNotFoundError):
        with unfinished.open("wb") as file:
            pickle.dump(drawn, file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(path)


@contextmanager
def left(folder: Path) -> Iterator[list[LastParts]]:
    """What the engines of all earlier attempts have left in `folder`. It is gone after the block."""
    attempts = [path.rename(path.with_suffix(TAKEN)) for path in sorted(folder.glob("*"))]
    files = [path for attempt in attempts for path in sorted(attempt.iterdir()) if path.suffix != UNFINISHED]
    yield [each for path in files for each in pickle.loads(path.read_bytes())]
    for attempt in attempts:
        shutil.rmtree(attempt)
