"""How the time of a check grows with the answer that it checks."""

import time
from collections.abc import Callable

SHORT = 500  # characters
TIMES = 8
LINEAR = 24  # a linear check takes about TIMES as long on TIMES the text, a quadratic one TIMES**2 = 64
TRIES = 8


def superlinear(check: Callable[[str], object], piece: str, tail: str = "", short_length: int = SHORT) -> bool:
    """Whether `check` takes more than LINEAR times as long on TIMES as many repetitions of `piece`, in all TRIES."""
    texts = [piece * (length // len(piece)) + tail for length in (short_length, short_length * TIMES)]
    short = long = float("inf")
    for _ in range(TRIES):
        short, long = (min(best, _seconds(check, text)) for best, text in zip((short, long), texts, strict=True))
        if long <= LINEAR * short:
            return False
    return True


def _seconds(check: Callable[[str], object], text: str) -> float:
    started = time.thread_time()
    check(text)
    return time.thread_time() - started
