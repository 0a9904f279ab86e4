"""How strongly a box is isolated."""

from __future__ import annotations

from enum import StrEnum


class Tier(StrEnum):
    """Strongest first. Every tier has resource limits, a seccomp filter, and no network.

    NAMESPACES               bubblewrap: own namespaces for users, processes, network, mounts, IPC and host name
    NAMESPACES_WITHOUT_PROC  the same without /proc, which cannot be mounted in a container whose own /proc is masked
    LANDLOCK                 no namespaces: Landlock hides files; the filter denies a program child processes and
                             signals to other processes
    """

    NAMESPACES = "namespaces"
    NAMESPACES_WITHOUT_PROC = "namespaces without /proc"
    LANDLOCK = "landlock"
