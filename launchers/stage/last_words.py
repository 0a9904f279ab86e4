"""The last words of a stage's ranks: what each of them raised, as files in the stage's logs.

Whoever started the ranks puts them into the `ended` event, so that `cascade status` and the report say why a stage
failed.
"""

from collections.abc import Callable
from pathlib import Path
from traceback import format_exception, format_exception_only

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.run.durable_file import write_atomically

PREFIX = "last_words_"
LONGEST = 2_000  # characters of a message in an event


def kept(logs: Path, rank: int, command: Callable[[], int]) -> int:
    """The result of `command`. Keeps what it raises, and raises it."""
    try:
        return command()
    except Exception as error:
        trace = "" if isinstance(error, UserError) else "".join(format_exception(error))
        message = str(error) if isinstance(error, UserError) else "".join(format_exception_only(error)).strip()
        write_atomically(logs / f"{PREFIX}{rank}", f"{message[:LONGEST]}\n\n{trace}")
        raise


def forget(logs: Path) -> None:
    """Removes those of an earlier attempt."""
    for path in logs.glob(f"{PREFIX}*"):
        path.unlink()


def last_words(logs: Path) -> str:
    """The message of the rank that failed first: its failure makes others fail. Empty if none could say anything."""
    told = sorted(logs.glob(f"{PREFIX}*"), key=lambda path: path.stat().st_mtime_ns)
    return told[0].read_text().partition("\n\n")[0] if told else ""
