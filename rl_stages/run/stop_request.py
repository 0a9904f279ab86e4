"""How a job's ranks are asked to stop: SIGUSR1, which `in_job` blocks in all that it starts.

A blocked signal waits, from the first line of a rank on, until the rank looks; what a rank starts itself, engines and
verifiers, inherits the block and is not killed by a signal to the whole job.
"""

import signal

STOPPED = 75  # exit code: saved on request, wants to go on (EX_TEMPFAIL)
STOP_SIGNAL = signal.SIGUSR1


class StopRequested(Exception):
    """The stage was asked to stop and has saved its step."""


def asked() -> bool:
    """Whether this rank was asked."""
    return STOP_SIGNAL in signal.sigpending()
