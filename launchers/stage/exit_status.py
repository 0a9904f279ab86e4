"""The exit codes of the programs, and the last place where an error is caught."""

import errno
import os
import signal
import sys
from collections.abc import Callable

from cascade_rl.engine.core.errors import UserError

USER_ERROR = 2
INTERRUPTED = 128 + signal.SIGINT
FILE_ERRORS = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR}


def exit_status(program: str, command: Callable[[], int]) -> int:
    """Runs `command` and returns its exit code.

    A user error, and a file that cannot be read or written, is printed as one message, without a traceback. A reader
    of the output that has left, such as `head`, is no error.
    """
    try:
        return command()
    except UserError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return USER_ERROR
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # which is flushed once more at the exit
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.errno not in FILE_ERRORS or error.filename is None:
            raise
        print(f"{program}: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        return INTERRUPTED
