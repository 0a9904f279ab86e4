"""A host of the job, as rank 0 holds it: where it starts processes and speaks to them."""

import socket
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Protocol


class NodeLost(RuntimeError):
    """The first rank of a node is gone, and what it started with it. Only a new start of the job helps."""


class Node(Protocol):
    """Functions run in the first rank of one host; from other hosts they go by name, and they must be quick. What they
    raise is raised here; NodeLost where that rank is gone."""

    @property
    def host(self) -> str:
        """Its name."""

    def open[T](self, start: Callable[..., T], *arguments: Any) -> tuple[Connection, T]:
        """The end here of a new connection, and what `start(its other end, *arguments)` returned there. That end is
        closed afterwards: `start` gives it to a process."""

    def call[T](self, function: Callable[..., T], *arguments: Any) -> T:
        """What the function returned there."""


@dataclass(frozen=True)
class ThisNode:
    """The host of this process. Both ends of a connection are an inherited socket pair: no port and no key."""

    @property
    def host(self) -> str:
        """See `Node`."""
        return socket.gethostname()

    def open[T](self, start: Callable[..., T], *arguments: Any) -> tuple[Connection, T]:
        """See `Node`."""
        ours, theirs = Pipe()
        with theirs:
            return ours, start(theirs, *arguments)

    def call[T](self, function: Callable[..., T], *arguments: Any) -> T:
        """See `Node`."""
        return function(*arguments)
