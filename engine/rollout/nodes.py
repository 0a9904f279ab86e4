"""The nodes of a job. Engines and untrusted programs run on each of them.

The first rank of each node starts that node's processes as its own children. Rank 0 asks it to over a separate
connection, and then talks to the process itself.
"""

import os
import pickle
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import torch.distributed as dist

from cascade_rl.engine.backend.ranks import from_all, from_rank0, is_rank0
from cascade_rl.engine.cluster.link import Door, connect
from cascade_rl.engine.cluster.node import Node, NodeLost, ThisNode
from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.rollout.engine_layout import engines_per_node
from cascade_rl.engine.rollout.protocol import Call
from cascade_rl.engine.rollout.server_process import end_servers

ANSWER_SECONDS = 600.0  # of a function that is called on another node, and is quick


class FirstRank(NamedTuple):
    """What the first rank of each node tells all others. `head` is the address of rank 0's node, resolved there."""

    rank: int
    host: str
    head: str


class OtherNode:
    """Rank 0's handle of another node, usable from all of its threads."""

    def __init__(self, first: FirstRank, control: Connection) -> None:
        self._first, self._control, self._lock = first, control, threading.Lock()

    @property
    def host(self) -> str:
        """See `Node`."""
        return self._first.host

    def open(self, start: Callable[..., Any], *arguments: Any) -> tuple[Connection, Any]:
        """See `Node`."""
        with self._asking(), Door(self._first.head) as door:
            self._ask(Call(start, arguments, door.invitation))
            came = door.fileno() in wait([door.fileno(), self._control.fileno()])
            connection = door.accept() if came else None
            started = self._answer()
        if connection is None or isinstance(started, Exception):
            raise started
        return connection, started

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """See `Node`."""
        with self._asking():
            self._ask(Call(function, arguments))
            answer = self._answer()
        if isinstance(answer, Exception):
            raise answer
        return answer

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Allows one question at a time."""
        with self._lock:
            try:
                yield
            except (EOFError, OSError) as gone:
                raise NodeLost(
                    f"rank {self._first.rank}, the first of node {self._first.host}, is gone, with every process that "
                    f"it started ({gone or 'end of file'}): start the job again"
                ) from gone

    def _ask(self, question: Call) -> None:
        # Not `send`: if it fails, its BytesIO is in a cycle with the error, and freeing both crashes Python 3.12.
        self._control.send_bytes(pickle.dumps(question))

    def _answer(self) -> Any:
        if not self._control.poll(ANSWER_SECONDS):
            raise TimeoutError(f"no answer within {ANSWER_SECONDS:.0f} s")
        return self._control.recv()


@contextmanager
def nodes_of_job(engines: int) -> Iterator[list[Node]]:
    """On rank 0 all nodes, its own first; none on other ranks. Collective.

    Raises UserError on all ranks if `engines` cannot be spread evenly. The engines of the other nodes are killed after
    the block, or when rank 0 dies.
    """
    firsts = _first_ranks()
    engines_per_node(engines, len(firsts))
    others = {first.rank: first for first in firsts[1:]}
    with ExitStack() as exits:
        controls = {rank: exits.enter_context(control) for rank, control in _meet(others).items()}
        found = [OtherNode(others[rank], control) for rank, control in controls.items()]
        yield [ThisNode(), *found] if is_rank0() else []


def _first_ranks() -> list[FirstRank]:
    """The first ranks of all nodes, beginning with rank 0."""
    mine = None
    if int(os.environ["LOCAL_RANK"]) == 0:
        head = socket.getaddrinfo(os.environ["MASTER_ADDR"], None, type=socket.SOCK_STREAM)[0][4][0]
        mine = FirstRank(dist.get_rank(), socket.gethostname(), str(head))
    return [first for first in from_all(mine) if first]


def _meet(others: Mapping[int, FirstRank]) -> dict[int, Connection]:
    """Rank 0 listens, and the other first ranks connect. Returns rank 0's connections by rank, empty on other ranks."""
    rank = dist.get_rank()
    with _door(others) if others and rank == 0 else nullcontext() as door:
        invitation = from_rank0(lambda: door.invitation if door else None)
        if rank in others:
            assert invitation
            control = connect(invitation)
            control.send(rank)
            threading.Thread(target=_obey, args=(control,), name="engines", daemon=True).start()
        controls = [door.accept() for _ in others] if door else []
    return dict(sorted((control.recv(), control) for control in controls))


def _door(others: Mapping[int, FirstRank]) -> Door:
    guest = next(iter(others.values()))
    try:
        return Door(guest.head)
    except OSError as refusal:
        raise UserError(
            f"MASTER_ADDR: expected an address of rank 0's node, found {guest.head}, as node {guest.host} resolves "
            f"it, where rank 0 cannot listen ({refusal})."
        ) from refusal


def _obey(control: Connection) -> None:
    """A thread of a node's first rank: carries out what rank 0 asks for, until rank 0 is gone.

    Servers die with the thread that started them, which is this one.
    """
    with control:
        try:
            while True:
                control.send(_answer_to(control.recv()))
        except (EOFError, OSError):
            end_servers()


def _answer_to(call: Call) -> Any:
    try:
        if call.invitation is None:
            return call.function(*call.arguments)
        with connect(call.invitation) as theirs:
            return call.function(theirs, *call.arguments)
    except Exception as refusal:  # rank 0 raises it
        return refusal
