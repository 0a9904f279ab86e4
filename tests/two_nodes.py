"""Two nodes, which are two ranks that each think they are the first of a node.

They differ in their host names where this process may change one, so that a refit between them takes the wire.
"""

import os
import socket
from contextlib import suppress

HEAD = "127.0.0.2"


def be_first_of_a_node() -> int:
    """The rank of this process."""
    rank = int(os.environ["RANK"])
    os.environ |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": HEAD}
    with suppress(PermissionError):
        os.unshare(os.CLONE_NEWUTS)
        socket.sethostname(f"node{rank}")
    return rank
