"""A host of the job, as rank 0 sees it: it starts processes there and talks to them."""

import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Protocol


class NodeLost(RuntimeError):
    """The first rank of a node is gone, with every process that it started. The job must be started again."""


class Node(Protocol):
    """Runs functions in the first rank of one host. To another host they are pickled by name. They must be quick. What
    they raise is raised here; NodeLost if that rank is gone."""

    @property
    def host(self) -> str:
        """The name of the host."""

    @property
    def ranks(self) -> int:
        """The number of the trainer's ranks there, which have its first cards."""

    def open[T](self, start: Callable[..., T], *arguments: Any) -> tuple[Connection, T]:
        """This end of a new connection, and what `start(other end, *arguments)` returned on the host. The other end is
        closed there afterwards, so `start` must hand it to a process."""

    def call[T](self, function: Callable[..., T], *arguments: Any) -> T:
        """What the function returned on the host."""


@dataclass(frozen=True)
class ThisNode:
    """The host of this process. A connection is an inherited socket pair: no port and no key."""

    ranks: int = field(default=0, compare=False)

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
