"""`--version` of both console scripts."""

from importlib.metadata import version


def version_line() -> str:
    """The version that is installed; setup.py gives it."""
    return f"cascade-rl {version('cascade-rl')}"
