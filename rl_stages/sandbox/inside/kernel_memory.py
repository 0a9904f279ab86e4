"""Memory of a box that no process's resident set shows: what waits in its sockets, the files in its own memory, and
what the kernel keeps of its mappings.

Only a box in namespaces has sockets and such files. Its processes cannot enlarge a socket's buffer, and change neither
namespace nor root. The length of a datagram socket's queue is that of a new network namespace.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from cascade_rl.rl_stages.sandbox.process_tree import Usage, as_owner_of
from cascade_rl.rl_stages.sandbox.walls.bubblewrap import OWN_FOLDERS

_MESSAGE = 1 << 16  # by which a full buffer may be exceeded
_DATAGRAMS = 11  # one more than net.unix.max_dgram_qlen; each sender may leave a whole buffer behind
_DATAGRAM = b"0002"  # in the fifth column of /proc/net/unix
_FILE = 1 << 10  # what the kernel keeps of an empty one
_MAPPING = 1 << 9  # what it keeps of one, with its share of their tree
_MOST_MAPPINGS = 65_530  # of a process, unless vm.max_map_count is another
_PAGE = os.sysconf("SC_PAGE_SIZE")


@cache
def _buffer() -> int:
    """Bytes that a socket holds unless its program asks for more."""
    with socket.socket(socket.AF_UNIX) as usual:
        return usual.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) + _MESSAGE


def kernel_memory(processes: Iterable[int], folder_bytes: int) -> int:
    """At most so many bytes, of the box of these processes, whose own folders have `folder_bytes` each."""
    outside = os.stat("/proc/self/ns/net").st_ino
    for pid in processes:
        try:
            with as_owner_of(f"/proc/{pid}"):
                if os.stat(f"/proc/{pid}/ns/net").st_ino != outside:
                    return _in_sockets(pid) + sum(_in_files(pid, folder, folder_bytes) for folder in OWN_FOLDERS)
        except (FileNotFoundError, ProcessLookupError):
            continue
        except PermissionError:
            continue  # it hides itself, so it has no namespace of its own: over these a worker's user may do everything
    return 0


def most_of_mappings(usage: Usage) -> int:
    """Bytes that the kernel can keep of the mappings of one process, with their page tables, by its address space."""
    pages = usage.address_bytes // _PAGE
    return min(pages, _MOST_MAPPINGS) * _MAPPING + pages * 8


def of_mappings(processes: Mapping[int, Usage], most_bytes: int) -> int:
    """Bytes that it does keep of all, counted until they are more than `most_bytes`. A process that hides itself has as
    many mappings as it can."""
    total = 0
    for pid, usage in processes.items():
        if total <= most_bytes:
            total += _of_mappings(pid, usage)
    return total


def _of_mappings(pid: int, usage: Usage) -> int:
    try:
        with as_owner_of(f"/proc/{pid}"):
            mappings = Path(f"/proc/{pid}/maps").read_bytes().count(b"\n")
        tables = Path(f"/proc/{pid}/status").read_text().partition("VmPTE:")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    except PermissionError:
        return most_of_mappings(usage)
    return mappings * _MAPPING + (int(tables[0]) << 10 if tables else 0)


def _in_sockets(pid: int) -> int:
    """The list has those that no process has open, too: not yet accepted, or in flight."""
    sockets = [line.split() for line in Path(f"/proc/{pid}/net/unix").read_bytes().splitlines()[1:]]
    return sum(_buffer() * (_DATAGRAMS if fields[4] == _DATAGRAM else 1) for fields in sockets)


def _in_files(pid: int, folder: str, folder_bytes: int) -> int:
    found = os.statvfs(f"/proc/{pid}/root{folder}")
    if found.f_blocks * found.f_frsize != folder_bytes:
        return 0  # a workspace on a disk, or the box is not made yet
    return (found.f_blocks - found.f_bfree) * found.f_frsize + (found.f_files - found.f_ffree) * _FILE
