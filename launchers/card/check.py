"""A check of `cascade doctor --gpu`."""

from collections.abc import Callable
from dataclasses import dataclass


class Unfit(Exception):
    """What was expected, what was found, and what to change."""


@dataclass(frozen=True)
class Check:
    """code      the exit code of the command if this check is the first that fails
    looks_at  what it needs to find, as a machine without a card is told
    run       returns what was found; whatever it raises fails the check
    """

    code: int
    name: str
    looks_at: str
    run: Callable[[], str]
