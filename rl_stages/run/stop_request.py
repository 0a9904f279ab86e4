"""The stop request to a job's ranks: SIGUSR1, which launchers/stage/in_job.py blocks in all its processes.

A blocked signal stays pending until the rank checks for it, from the rank's first line on. Engines and verifiers that a
rank starts inherit the block, so a signal to the whole job does not kill them.
"""

import signal

STOPPED = 75  # exit code (EX_TEMPFAIL): saved on request, to be resumed
STOP_SIGNAL = signal.SIGUSR1


class StopRequested(Exception):
    """The stage was asked to stop and has saved its step."""


def asked() -> bool:
    """Whether this rank was asked to stop."""
    return STOP_SIGNAL in signal.sigpending()
