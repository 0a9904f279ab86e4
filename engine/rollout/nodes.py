"""The nodes of a job. Engines and untrusted programs run on each of them.

The first process of each node starts that node's processes as its own children: its first rank or, where engines have
the node alone, a keeper (`keep_node`). Rank 0 asks it to over a separate connection, and then talks to the process
itself.
"""

import os
import pickle
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import torch.distributed as dist
from torch.distributed import DistError, DistStoreError, PrefixStore, Store, TCPStore

from cascade_rl.engine.backend.ranks import from_all, from_rank0, is_rank0
from cascade_rl.engine.cluster.link import Door, Invitation, connect
from cascade_rl.engine.cluster.node import Node, NodeLost, ThisNode
from cascade_rl.engine.cluster.rank_environment import ENGINE_NODES
from cascade_rl.engine.cluster.store import get, put
from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.rollout.protocol import Call
from cascade_rl.engine.rollout.seats import engines_per_node
from cascade_rl.engine.rollout.server_process import end_servers

ANSWER_SECONDS = 600.0  # of a function that is called on another node, and is quick
START_LIMIT = timedelta(minutes=15)  # until all processes of a job have started
JOB_LIMIT = timedelta(days=7)  # until rank 0 opens the door: it may prepare a model first
INVITATION = "invitation"


class First(NamedTuple):
    """What the first process of a node tells rank 0.

    name   of the process, in messages
    host   of its node
    head   the address of rank 0's node, resolved here
    ranks  of its node
    """

    name: str
    host: str
    head: str
    ranks: int


class OtherNode:
    """Rank 0's handle of another node, usable from all of its threads."""

    def __init__(self, first: First, control: Connection) -> None:
        self._first, self._control, self._lock = first, control, threading.Lock()

    @property
    def host(self) -> str:
        """See `Node`."""
        return self._first.host

    @property
    def ranks(self) -> int:
        """See `Node`."""
        return self._first.ranks

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
                    f"{self._first.name}, the first of node {self._first.host}, is gone, with every process that "
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
    """On rank 0 all nodes, its own first and those without ranks last; none on other ranks. Collective.

    Raises UserError on all ranks if `engines` cannot be spread evenly. The engines of the other nodes are killed after
    the block, or when rank 0 dies.
    """
    firsts, keepers = _first_ranks(), int(os.environ.get(ENGINE_NODES, "0"))
    engines_per_node(engines, keepers or len(firsts))
    store = _store(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])) if keepers and is_rank0() else None
    others = [*firsts[1:], *(_arrived(store, keepers) if store else ())]
    with ExitStack() as exits:
        controls = {name: exits.enter_context(control) for name, control in _meet(others, store).items()}
        found = [OtherNode(first, controls[first.name]) for first in others if controls]
        yield [ThisNode(firsts[0].ranks), *found] if is_rank0() else []


def keep_node(number: int, address: str, port: int) -> None:
    """Is the `number`-th keeper of a job, the first process of a node that has engines and no rank: starts what rank 0
    asks for, until rank 0 is gone. The job's store is at `address`, an address of rank 0's node.

    Raises DistError if there is no store within START_LIMIT.
    """
    store, name = _store(address, port), _keeper(number)
    try:
        put(store, name, First(name, socket.gethostname(), _resolved(address), ranks=0))
        store.wait([INVITATION], JOB_LIMIT)
        invitation = get(store, INVITATION)
    except DistError as gone:
        print(f"{name}: rank 0 ended before it asked for anything; its own log says why ({gone})", flush=True)
        return
    _obey(_accepted(invitation, name))


def _keeper(number: int) -> str:
    return f"keeper {number}"


def _store(address: str, port: int) -> Store:
    return PrefixStore("nodes", TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=START_LIMIT))


def _arrived(store: Store, keepers: int) -> list[First]:
    """Waits for all keepers."""
    names = list(map(_keeper, range(keepers)))
    try:
        store.wait(names, START_LIMIT)
    except DistStoreError as late:
        missing = ", ".join(name for name in names if not store.check([name]))
        raise NodeLost(
            f"expected a keeper of each of the {keepers} nodes that have engines alone within {START_LIMIT}, found no "
            f"{missing}: see what the job's log says of its node, and start the job again"
        ) from late
    return [get(store, name) for name in names]


def _first_ranks() -> list[First]:
    """The first ranks of all nodes, beginning with rank 0."""
    mine = None
    if int(os.environ["LOCAL_RANK"]) == 0:
        head, ranks = _resolved(os.environ["MASTER_ADDR"]), int(os.environ["LOCAL_WORLD_SIZE"])
        mine = First(_rank(), socket.gethostname(), head, ranks)
    return [first for first in from_all(mine) if first]


def _rank() -> str:
    return f"rank {dist.get_rank()}"


def _resolved(address: str) -> str:
    return str(socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0][4][0])


def _meet(others: Sequence[First], store: Store | None) -> dict[str, Connection]:
    """Rank 0 listens, and the first processes of the other nodes connect; keepers find the invitation in the `store`.
    Returns rank 0's connections by name, none on other ranks."""
    with _door(others) if others and is_rank0() else nullcontext() as door:
        invitation = from_rank0(lambda: door.invitation if door else None)
        if store:
            put(store, INVITATION, invitation)
        if invitation and _rank() in [first.name for first in others]:
            control = _accepted(invitation, _rank())
            threading.Thread(target=_obey, args=(control,), name="engines", daemon=True).start()
        controls = [door.accept() for _ in others] if door else []
    return {control.recv(): control for control in controls}


def _door(others: Sequence[First]) -> Door:
    guest = others[0]
    try:
        return Door(guest.head)
    except OSError as refusal:
        raise UserError(
            f"MASTER_ADDR: expected an address of rank 0's node, found {guest.head}, as node {guest.host} resolves "
            f"it, where rank 0 cannot listen ({refusal})."
        ) from refusal


def _accepted(invitation: Invitation, name: str) -> Connection:
    control = connect(invitation)
    control.send(name)
    return control


def _obey(control: Connection) -> None:
    """Of a node's first process, a rank's thread: carries out what rank 0 asks for, until rank 0 is gone.

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
