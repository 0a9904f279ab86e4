"""Memory of a box that no process's resident set shows: what waits in its sockets, the files in its own memory, and
what the kernel keeps of its mappings, descriptors and locks.

Only a box in namespaces has sockets and such files. Its processes cannot enlarge a socket's buffer, and change neither
namespace nor root. The length of a datagram socket's queue is that of a new network namespace.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Collection, Container, Iterable
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
_WATCH = 200  # what it keeps for one descriptor of epoll that watches another
_LOCKS_BYTES = 1 << 20  # of the machine's list of locks, which takes quadratic time to read
_LOCK_OF = re.compile(rb"POSIX +\w+ +\w+ +(\d+)")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@cache
def _buffer() -> int:
    """Bytes that a socket holds unless its program asks for more."""
    with socket.socket(socket.AF_UNIX) as usual:
        return usual.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) + _MESSAGE


def kernel_memory(processes: Collection[Usage], folder_bytes: int) -> int:
    """At most so many bytes, of the box of these processes, whose own folders have `folder_bytes` each."""
    return sum(map(_of_descriptors, processes)) + _of_namespaces(processes, folder_bytes)


def _of_namespaces(processes: Iterable[Usage], folder_bytes: int) -> int:
    outside = os.stat("/proc/self/ns/net").st_ino
    for usage in processes:
        try:
            with as_owner_of(usage.folder):
                if os.stat(f"{usage.folder}/ns/net").st_ino != outside:
                    files = sum(_in_files(usage.folder, folder, folder_bytes) for folder in OWN_FOLDERS)
                    return files + _in_sockets(usage.folder)
        except (FileNotFoundError, ProcessLookupError):
            continue
        except PermissionError:
            continue  # it hides itself, so it has no namespace of its own: over these a worker's user may do everything
    return 0


def locks(processes: Container[int]) -> int:
    """How many locks on parts of files these processes have, as far as the machine's list is read."""
    with open("/proc/locks", "rb") as file:
        return sum(int(owner) in processes for owner in _LOCK_OF.findall(file.read(_LOCKS_BYTES)))


def most_of_mappings(usage: Usage) -> int:
    """Bytes that the kernel can keep of the mappings of one process, by its address space."""
    return min(usage.address_bytes // _PAGE, _MOST_MAPPINGS) * _MAPPING


def of_mappings(processes: Iterable[Usage], most_bytes: int) -> int:
    """Bytes that it does keep of all, counted until they are more than `most_bytes`. A process that hides itself has as
    many mappings as it can."""
    total = 0
    for usage in processes:
        if total <= most_bytes:
            total += _of_mappings(usage)
    return total


def _of_mappings(usage: Usage) -> int:
    try:
        with as_owner_of(usage.folder):
            return Path(f"{usage.folder}/maps").read_bytes().count(b"\n") * _MAPPING
    except (FileNotFoundError, ProcessLookupError):
        return 0
    except PermissionError:
        return most_of_mappings(usage)


def _of_descriptors(usage: Usage) -> int:
    """As if half of them were of epoll and watched the others: to count the watches would take too long."""
    return (usage.descriptors // 2) ** 2 * _WATCH


def _in_sockets(process: str) -> int:
    """The list has those that no process has open, too: not yet accepted, or in flight."""
    sockets = [line.split() for line in Path(f"{process}/net/unix").read_bytes().splitlines()[1:]]
    return sum(_buffer() * (_DATAGRAMS if fields[4] == _DATAGRAM else 1) for fields in sockets)


def _in_files(process: str, folder: str, folder_bytes: int) -> int:
    found = os.statvfs(f"{process}/root{folder}")
    if found.f_blocks * found.f_frsize != folder_bytes:
        return 0  # a workspace on a disk, or the box is not made yet
    return (found.f_blocks - found.f_bfree) * found.f_frsize + (found.f_files - found.f_ffree) * _FILE
