"""Whether a process lives."""

import psutil


def runs(pid: int) -> bool:
    """Nobody may be there to reap what has died: a zombie does not run."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
