"""Restricts the files that a process without namespaces may open, with Landlock. This module also runs in the box."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # the same numbers on x86_64 and aarch64
_PATH_BENEATH = 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_REFER, _TRUNCATE, _IOCTL_DEVICE = 1 << 13, 1 << 14, 1 << 15
_MAKE_SPECIAL = 1 << 6 | 1 << 9 | 1 << 11  # character device, socket, block device
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEVICE
_TCP, _SIGNALS_AND_ABSTRACT_SOCKETS = 3, 3
_O_PATH = 0o10000000
DEVICES = ("/dev/null", "/dev/full", "/dev/random", "/dev/urandom")
TRUNCATION_RESTRICTED, SIGNALS_SCOPED = 3, 6  # the first ABI versions that can deny these outside

_libc = ctypes.CDLL(None, use_errno=True)


def abi() -> int:
    """The ABI version of Landlock. Raises OSError if the kernel does not have it or it is off."""
    return _checked(_libc.syscall(_CREATE, None, 0, 1), "Landlock")


def ruleset(readable: Iterable[str], writable: Iterable[str], version: int, listed: Iterable[str] = ()) -> int:
    """Descriptor of a ruleset that allows only these paths and what is below them, and no TCP. Ignores missing paths.

    Of `listed` only names can be read. It uses ABI `version`, which may be lower than the kernel's. Landlock denies TCP
    from ABI 4 on.
    """
    handled = _handled(version)
    scopes = _TCP * (version >= 4), _SIGNALS_AND_ABSTRACT_SOCKETS * (version >= SIGNALS_SCOPED)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    rules = _checked(_libc.syscall(_CREATE, struct.pack("=QQQ", handled, *scopes), size, 0), "landlock_create_ruleset")
    for path in readable:
        _allow(rules, path, _READ & handled)
    for path in listed:
        _allow(rules, path, _READ_DIR)
    for path in (*writable, *DEVICES):
        _allow(rules, path, handled & ~_MAKE_SPECIAL)
    return rules


def around(roots: Iterable[str], hidden: Iterable[str]) -> tuple[list[str], list[str]]:
    """(readable, listed) for a ruleset that allows `roots` without the real paths `hidden`.

    Landlock cannot take away what is below a folder that it allows. So a folder above a hidden path is only listed, and
    what else lies in it is allowed one by one. A listed folder shows the names of hidden files too, but not what is in
    them: without its names Python finds nothing in a folder.
    """
    taken = set(hidden)
    above = {parent for path in taken for parent in _parents(path)}
    readable, listed = [], []
    left = [os.path.realpath(root) for root in roots]
    while left:
        path = left.pop()
        if path in above:
            listed.append(path)
            # A link would allow what it leads to.
            left += [entry.path for entry in os.scandir(path) if not entry.is_symlink()]
        elif path not in taken:
            readable.append(path)
    return readable, listed


def _parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:index]) for index in range(2, len(parts))]


def restrict(rules: int) -> None:
    """Applies the ruleset to this process, which must have `no_new_privs`. This cannot be undone."""
    _checked(_libc.syscall(_RESTRICT, rules, 0), "landlock_restrict_self")


def _handled(version: int) -> int:
    newer = ((2, _REFER), (TRUNCATION_RESTRICTED, _TRUNCATE), (5, _IOCTL_DEVICE))
    return _REFER - 1 | sum(right for since, right in newer if version >= since)


def _allow(rules: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, _O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        allowed = rights & (~0 if os.path.isdir(path) else _ON_FILES)
        rule = struct.pack("=Qi", allowed, descriptor)
        _checked(_libc.syscall(_ADD, rules, _PATH_BENEATH, rule, 0), f"landlock_add_rule {path}")
    finally:
        os.close(descriptor)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number or errno.EINVAL)}")
    return int(result)
