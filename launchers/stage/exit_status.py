"""The exit codes of the programs, and the last place where an error is caught."""

import signal
import sys
from collections.abc import Callable

from cascade_rl.engine.core.errors import UserError

USER_ERROR = 2
INTERRUPTED = 128 + signal.SIGINT


def exit_status(program: str, command: Callable[[], int]) -> int:
    """Runs `command` and returns its exit code. A user error is printed as one message, without a traceback."""
    try:
        return command()
    except UserError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return USER_ERROR
    except KeyboardInterrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        return INTERRUPTED
