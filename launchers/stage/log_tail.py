"""The end of a log."""

from pathlib import Path

LINES = 20


def log_tail(path: Path, lines: int = LINES) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
