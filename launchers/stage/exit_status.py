"""The border of a program: what its exit code says."""

import signal
import sys
from collections.abc import Callable

from cascade_rl.engine.core.errors import UserError

USER_ERROR = 2
INTERRUPTED = 128 + signal.SIGINT


def exit_status(program: str, command: Callable[[], int]) -> int:
    """The exit code of `command`; a user error is told in one message, without a traceback."""
    try:
        return command()
    except UserError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return USER_ERROR
    except KeyboardInterrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        return INTERRUPTED
