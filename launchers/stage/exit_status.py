"""The exit codes of the programs, and the last place where an error is caught."""

import errno
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from cascade_rl.engine.core.errors import UserError

USER_ERROR = 2
INTERRUPTED = 128 + signal.SIGINT
FULL = {errno.ENOSPC, errno.EDQUOT}
FILE_ERRORS = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR}


def exit_status(program: str, command: Callable[[], int]) -> int:
    """Runs `command` and returns its exit code.

    A user error, a file that cannot be read or written, and a full disk is printed as one message, without a traceback.
    A reader of the output that has left, such as `head`, is no error.
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
        if error.errno in FULL:
            print(f"{program}: {_disk_full(error)}", file=sys.stderr)
            return 1
        if error.errno not in FILE_ERRORS or error.filename is None:
            raise
        print(f"{program}: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        return INTERRUPTED


def _disk_full(error: OSError) -> str:
    """Says what is free where a program writes: the error of a write does not name its file."""
    named = [error.filename] if error.filename else []
    given = [argument for argument in sys.argv[1:] if Path(argument).exists()]
    places = dict.fromkeys([*given, os.getcwd(), tempfile.gettempdir()])
    free = ", ".join(f"{place} {shutil.disk_usage(place).free / 1e6:,.0f} MB" for place in places)
    what = ": ".join([*named, os.strerror(error.errno or errno.ENOSPC)])
    return f"{what}; free now: {free}. Make room and start again: the same command goes on from the newest checkpoint"
