"""Reserves a free port until the intended process listens on it."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_port() -> Iterator[int]:
    """Yields a port that the kernel assigns to no other program while the context lasts.

    A listener that binds this port by number, with SO_REUSEADDR, still gets it; torch's TCPStore does so. Without the
    reservation, a port that was free may be taken before a rank has imported torch: any outgoing connection of any
    program may get it as its local port.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("", 0))  # it never listens, so a second socket can bind the port too
        yield int(holder.getsockname()[1])
