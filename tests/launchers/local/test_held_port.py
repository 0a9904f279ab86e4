"""A held port, on a network of its own that has twenty ports in all."""

import errno
import fcntl
import os
import socket
import struct
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from cascade_rl.launchers.local.held_port import held_port
from tests.gloo import run_ranks

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
PORTS = set(range(40_000, 40_020))
SIOCSIFFLAGS, IFF_UP = 0x8914, 1


def network_of_twenty_ports() -> None:
    os.unshare(os.CLONE_NEWNET)
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP))
    RANGE.write_text(f"{min(PORTS)} {max(PORTS)}")


def bound(reuse: int) -> socket.socket:
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
    one.bind(("127.0.0.1", 0))
    return one


def as_many(make: Callable[[], socket.socket]) -> Iterator[socket.socket]:
    while True:
        try:
            yield make()
        except OSError as error:
            assert error.errno in (errno.EADDRINUSE, errno.EADDRNOTAVAIL), error
            return


def ports_of(sockets: Iterator[socket.socket]) -> set[int]:
    kept = list(sockets)
    ports = {one.getsockname()[1] for one in kept}
    for one in kept:
        one.close()
    return ports


def on_rank() -> None:
    network_of_twenty_ports()
    with held_port() as port:
        assert ports_of(chain(as_many(lambda: bound(0)), as_many(lambda: bound(1)))) == PORTS - {port}
        with socket.create_server(("127.0.0.1", 50_000), backlog=100) as server:
            connected = as_many(lambda: socket.create_connection(server.getsockname()))
            assert ports_of(connected) == PORTS - {port}
        assert TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False).port == port


def test_nobody_gets_the_port_but_a_listener_that_names_it() -> None:
    try:
        run_ranks(1, on_rank)
    except PermissionError:
        pytest.skip("no network namespace for this user")
