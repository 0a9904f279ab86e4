"""A link between hosts: who may have one, and what each side sees when the other goes."""

import socket
import threading
from multiprocessing import AuthenticationError, Pipe
from multiprocessing.connection import Connection, wait

import pytest

from cascade_rl.engine.cluster import link
from cascade_rl.engine.cluster.link import Door, Invitation, connect, send_within

HERE = "127.0.0.2"


def met(door: Door, *, strangers: int = 0) -> tuple[Connection, Connection]:
    """Both ends, the host's first."""
    guests: list[Connection] = []
    coming = threading.Thread(target=lambda: guests.append(connect(door.invitation)))
    for _ in range(strangers):
        with socket.create_connection((HERE, door.invitation.port)) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
    coming.start()
    host = door.accept()
    coming.join()
    return host, guests[0]


def test_only_who_knows_the_key_comes_in() -> None:
    with Door(HERE) as door:
        for port, key in ((door.invitation.port, b"another key"), (door.invitation.port, b"")):
            wrong = threading.Thread(target=refused, args=(Invitation(HERE, port, key),))
            wrong.start()
            assert wait([door], 5)
            host, guest = met(door)
            wrong.join()
            guest.send({"weights": 1})
            assert host.recv() == {"weights": 1}
            host.close(), guest.close()
        assert door.invitation.key not in repr(REFUSALS).encode()
    assert len(REFUSALS) == 2


REFUSALS: list[Exception] = []


def refused(invitation: Invitation) -> None:
    try:
        connect(invitation)
    except (AuthenticationError, EOFError, OSError) as refusal:
        REFUSALS.append(refusal)


def test_strangers_do_not_end_the_wait() -> None:
    with Door(HERE) as door:
        host, guest = met(door, strangers=3)
    host.send(1)
    assert guest.recv() == 1


def test_a_stranger_who_says_nothing_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "CHALLENGE_SECONDS", 3)
    with Door(HERE) as door, socket.create_connection((HERE, door.invitation.port)):
        host, guest = met(door)
        guest.send(1)
        assert host.recv() == 1


def test_nobody_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "MEETING_SECONDS", 0.1)
    with Door(HERE) as door, pytest.raises(TimeoutError):
        door.accept()


def test_it_listens_at_one_address_and_only_while_it_waits() -> None:
    with Door(HERE) as door:
        port = door.invitation.port
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HERE, port))


@pytest.mark.parametrize("leaver", [0, 1])
def test_each_side_sees_the_other_go(leaver: int) -> None:
    with Door(HERE) as door:
        ends = met(door)
    ends[leaver].send("last words")
    ends[leaver].close()
    assert ends[1 - leaver].recv() == "last words"
    with pytest.raises(EOFError):
        ends[1 - leaver].recv()


def test_a_host_that_no_longer_answers_is_given_up() -> None:
    """The kernel does that; what it was told."""
    with Door(HERE) as door:
        for end in met(door):
            with socket.socket(fileno=end.fileno()) as sock:
                assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
                assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 120_000
                sock.detach()


def test_a_send_ends_when_nobody_reads() -> None:
    """As a stopped process does not; until the buffer is full nobody has to."""
    ours, theirs = Pipe()
    send_within(ours, 0.2)
    ours.send("small")
    with pytest.raises(BlockingIOError):
        ours.send(bytes(1 << 22))
    assert theirs.recv() == "small"
