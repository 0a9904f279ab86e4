"""A free port that stays free until the process that is meant to listen on it does."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_port() -> Iterator[int]:
    """A port of this machine that the kernel gives to nobody who asks for any, as long as the context lasts.

    A listener that names the port and sets SO_REUSEADDR gets it, as torch's TCPStore does. A port that was only
    seen to be free is another's by the time that a rank has imported torch: any connection of any program may have
    it as its own end.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("", 0))  # never listens: a second socket may then bind it too
        yield int(holder.getsockname()[1])
