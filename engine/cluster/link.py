"""A connection between processes on two hosts, with the guarantees of a socket pair.

It is open once both sides have proved that they know one random key. It reaches its end of file when either side dies,
or when the other host no longer answers. A port is open only while one side waits for the other.
"""

import os
import secrets
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import NamedTuple, Self

MEETING_SECONDS = 60.0
CHALLENGE_SECONDS = 10.0
SILENT_SECONDS = 120
KEY_BYTES = 32

# TCP_USER_TIMEOUT also ends a connection whose receiver reads nothing for so long. Servers and clients always read.
OPTIONS = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * SILENT_SECONDS),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
)


class Invitation(NamedTuple):
    """What the other side needs in order to connect."""

    host: str
    port: int
    key: bytes


class Door:
    """Listens for connections at one address of this host; a context manager. `invitation` holds address and key.

    Raises OSError if `host` is not an address of this host.
    """

    def __init__(self, host: str) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listening = socket.create_server((host, 0), family=family)
        self._listening.settimeout(MEETING_SECONDS)
        self.invitation = Invitation(host, self._listening.getsockname()[1], secrets.token_bytes(KEY_BYTES))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.close()

    def fileno(self) -> int:
        """Readable when somebody connects."""
        return self._listening.fileno()

    def accept(self) -> Connection:
        """The next connection whose other side knows the key; others are refused. Raises TimeoutError if none comes."""
        while True:
            guest, _ = self._listening.accept()
            with suppress(AuthenticationError, EOFError, OSError):
                return _trusted(guest, CHALLENGE_SECONDS, self.invitation.key, deliver_challenge, answer_challenge)


def connect(invitation: Invitation) -> Connection:
    """Accepts an invitation. Raises OSError if nobody listens, AuthenticationError or EOFError if the keys differ."""
    to = socket.create_connection((invitation.host, invitation.port), MEETING_SECONDS)
    return _trusted(to, MEETING_SECONDS, invitation.key, answer_challenge, deliver_challenge)


def send_within(connection: Connection, seconds: float) -> None:
    """From now on a `send` of which the other side reads nothing for so long raises BlockingIOError."""
    with socket.socket(fileno=os.dup(connection.fileno())) as sock:
        limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


def hang_up(connection: Connection) -> None:
    """The other side reads its end of file. What it sends still comes."""
    with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as sock:
        sock.shutdown(socket.SHUT_WR)


def _trusted(
    sock: socket.socket, patience: float, key: bytes, *challenges: Callable[[Connection, bytes], None]
) -> Connection:
    with sock:
        sock.setblocking(True)
        for level, option, value in OPTIONS:
            sock.setsockopt(level, option, value)
        _wait_at_most(sock, patience)
        connection = Connection(os.dup(sock.fileno()))
        for challenge in challenges:
            challenge(connection, key)
        _wait_at_most(sock, 0)
        return connection


def _wait_at_most(sock: socket.socket, seconds: float) -> None:
    """Sets the timeout of a read; 0: none."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(seconds), 0))
