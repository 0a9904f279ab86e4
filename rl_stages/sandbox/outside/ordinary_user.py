"""Becomes an ordinary user, as whom most clusters run, to see what holds for it."""

from __future__ import annotations

import os
from pathlib import Path

from cascade_rl.rl_stages.sandbox.walls import interpreter
from cascade_rl.rl_stages.sandbox.walls.host_view import HostView

_PACKAGE = str(Path(__file__).parents[3])


def become(user: int) -> None:
    """As setpriv does, for good, with this Python in reach. This process must be root, and not the only one that needs
    what it mounts for that. Raises OSError if the user cannot reach this Python, or cannot be."""
    reach(user)
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)


def reach(user: int) -> None:
    """Makes this Python accessible to a user, in a mount namespace of this process. Raises PermissionError."""
    HostView(user, [*interpreter.prefixes(), _PACKAGE])
