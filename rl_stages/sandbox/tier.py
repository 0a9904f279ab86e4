"""How strongly a box is isolated."""

from __future__ import annotations

from enum import StrEnum


class Tier(StrEnum):
    """Strongest first. Every tier has resource limits, a seccomp filter, and no network.

    NAMESPACES               bubblewrap: namespaces of its own for users, processes, network, mounts, IPC, host name
    NAMESPACES_WITHOUT_PROC  the same without /proc, which a container with a masked one cannot mount
    LANDLOCK                 no namespaces: Landlock hides files, the filter forbids children and signals to others
    """

    NAMESPACES = "namespaces"
    NAMESPACES_WITHOUT_PROC = "namespaces without /proc"
    LANDLOCK = "landlock"
