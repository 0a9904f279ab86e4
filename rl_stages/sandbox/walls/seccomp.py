"""The system calls that a box may not make, as a classic BPF program assembled by hand.

It supports x86_64 and aarch64, for which the kernel numbers the calls differently: asm/unistd_64.h and
asm-generic/unistd.h. This module also runs in the box.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Sequence
from functools import cache

CLONE_THREAD, _CLONE_FILES = 0x10000, 0x400
CLONE_NEW_NAMESPACE = 0x7E020000  # cgroup, uts, ipc, user, pid, net, mount
AF_UNIX = 1

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data; each argument has eight bytes
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000
_UNKNOWN = 463  # calls from here on are newer than these tables: libc falls back to older ones

# (x86_64, aarch64); None if the architecture does not have the call.
DENIED: dict[str, tuple[int | None, int | None]] = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "mount_setattr": (442, 442),
    "setns": (308, 268),
    "unshare": (272, 97),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "memfd_secret": (447, 447),
    "personality": (135, 92),
    "acct": (163, 89),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "syslog": (103, 116),
    "lookup_dcookie": (212, 18),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "vhangup": (153, 58),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    # Of these the machine, or the user of the run, has only a few.
    "io_setup": (206, 0),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "fanotify_init": (300, 262),
    # What these hold is in no process's memory.
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "semget": (64, 190),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "semctl": (66, 191),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    # A program that steps back for others could say that the machine had no processor for it.
    "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
}
# Without namespaces the filter must protect what they would isolate: other processes of the user, kernel-wide objects.
DENIED_WITHOUT_NAMESPACES: dict[str, tuple[int | None, int | None]] = {
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    # Landlock restricts none of these, even for files that it hides.
    "chown": (92, None),
    "lchown": (94, None),
    "fchown": (93, 55),
    "fchownat": (260, 54),
}
# Landlock restricts none of these either. In a box's own /tmp they are memory that nobody counts.
ATTRIBUTES: dict[str, tuple[int | None, int | None]] = {
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
}
# A page in a pipe keeps the huge page of which it is a part, also of a file that is gone. Programs then read and write.
PAGES_IN_PIPES: dict[str, tuple[int | None, int | None]] = {
    "vmsplice": (278, 75),
    "splice": (275, 76),
    "tee": (276, 77),
    "sendfile": (40, 71),
}
# Rules are memory of the kernel's. These two are for the driver of a box alone.
RULES: dict[str, tuple[int | None, int | None]] = {
    "seccomp": (317, 277),
    "landlock_create_ruleset": (444, 444),
    "landlock_add_rule": (445, 445),
    "landlock_restrict_self": (446, 446),
}
# Disk that is taken before anybody has looked. libc writes instead.
ALLOCATE: dict[str, tuple[int | None, int | None]] = {"fallocate": (285, 47)}
# Landlock does not restrict these, but copying, patching and `touch` call them.
MODES_AND_TIMES: dict[str, tuple[int | None, int | None]] = {
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
}
# Which argument is a mode. A file that runs as the user of the box would outlast it.
MODES: dict[str, int] = {
    **{"chmod": 1, "fchmod": 1, "creat": 1, "mknod": 1, "fchmodat": 2, "fchmodat2": 2, "open": 2, "mknodat": 2},
    "openat": 3,
}
# What Landlock scopes or restricts only in its later versions.
SIGNALS: dict[str, tuple[int | None, int | None]] = {"kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131)}
TRUNCATE: dict[str, tuple[int | None, int | None]] = {"truncate": (76, 45)}
DENIED_TO_ONE_PROCESS: dict[str, tuple[int | None, int | None]] = {
    "fork": (57, None),
    "vfork": (58, None),
    "setsid": (112, 157),
    "setpgid": (109, 154),
    "tkill": (200, 130),
}
_FILTERED: dict[str, tuple[int | None, int | None]] = {
    **SIGNALS,
    **{name: MODES_AND_TIMES[name] for name in ("chmod", "fchmod", "fchmodat", "fchmodat2")},
    "creat": (85, None),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "clone": (56, 220),
    "clone3": (435, 435),
    "prlimit64": (302, 261),
    "open": (2, None),
    "openat": (257, 56),
    "openat2": (437, 437),
    "ioctl": (16, 29),
    "fcntl": (72, 25),
    "memfd_create": (319, 279),
    "mmap": (9, 222),
    "madvise": (28, 233),
    "setsockopt": (54, 208),
    "prctl": (157, 167),
}
_O_TRUNC, _O_ACCMODE, _WRITABLE = 0o1000, 3, (1, 2)
_SET_USER_OR_GROUP = 0o6000
_TERMINAL, _GROUP = 0x5400, 0xFF00  # the group of ioctls that are of terminals and open files
_MAP_SHARED_ANONYMOUS, _MAP_KIND, _MAP_HUGETLB = 0x21, 0x2F, 0x40000
_MADV_HUGEPAGE, _MADV_PAGEOUT, _MADV_COLLAPSE = 14, 21, 25
_PR_SET_DUMPABLE, _PR_SET_THP_DISABLE = 4, 41
_SO_SNDBUF, _SO_SNDBUFFORCE = 7, 32
_F_SETOWN, _F_SETSIG, _F_SETOWN_EX, _F_SETLEASE, _F_NOTIFY = 8, 10, 15, 1024, 1026
_F_OFD_SETLK, _F_OFD_SETLKW = 37, 38


_libc = ctypes.CDLL(None, use_errno=True)


class Assembler:
    """Rules for one architecture, tried in order."""

    def __init__(self, machine: str) -> None:
        if machine not in AUDIT_ARCH:
            raise OSError(errno.ENOSYS, f"no table of system calls for {machine!r}: expected one of {list(AUDIT_ARCH)}")
        self._column = list(AUDIT_ARCH).index(machine)
        self._code = [
            *(_operation(_LOAD, _ARCH), _operation(_EQUAL, AUDIT_ARCH[machine], 1, 0), _operation(_RETURN, _KILL)),
            *(_operation(_LOAD, _NUMBER), _operation(_AT_LEAST, _X32_BIT, 0, 1), _operation(_RETURN, _KILL)),
        ]

    def deny(self, calls: dict[str, tuple[int | None, int | None]], error: int = errno.EPERM) -> None:
        """Without an error (0) the calls do nothing and report success."""
        for numbers in calls.values():
            number = numbers[self._column]
            if number is not None:
                self._code += [_operation(_EQUAL, number, 0, 1), _operation(_RETURN, _ERRNO | error)]

    def deny_from(self, number: int, error: int) -> None:
        self._code += [_operation(_AT_LEAST, number, 0, 1), _operation(_RETURN, _ERRNO | error)]

    def refuse(self, name: str, error: int) -> None:
        self.deny({name: _FILTERED[name]}, error)

    def refuse_unless(
        self, name: str, test: int, operands: Sequence[int], error: int, argument: int = 0, mask: int = ~0
    ) -> None:
        """Refuses the call unless `test` holds for the masked argument and one of `operands`."""
        count = len(operands)
        checks = [_operation(test, value, count - index, 0) for index, value in enumerate(operands)]
        self._if_called(name, argument, mask, [*checks, _operation(_RETURN, _ERRNO | error)])

    def refuse_if(
        self, name: str, test: int, operands: Sequence[int], error: int, argument: int = 0, mask: int = ~0
    ) -> None:
        for value in operands:
            check = [_operation(test, value, 0, 1), _operation(_RETURN, _ERRNO | error)]
            self._if_called(name, argument, mask, check)

    def refuse_truncating_a_file_that_is_not_writable(self, name: str, argument: int) -> None:
        """An open file that can be neither written nor read is none to Landlock, and yet truncated."""
        accesses = [_operation(_EQUAL, mode, len(_WRITABLE) - index, 0) for index, mode in enumerate(_WRITABLE)]
        body = [_operation(_AND, _O_ACCMODE), *accesses, _operation(_RETURN, _ERRNO | errno.EPERM)]
        self._if_called(name, argument, ~0, [_operation(_ANY_BIT, _O_TRUNC, 0, len(body)), *body])

    def finish(self) -> bytes:
        return b"".join([*self._code, _operation(_RETURN, _ALLOW)])

    def _if_called(self, name: str, argument: int, mask: int, body: list[bytes]) -> None:
        number = _FILTERED[name][self._column]
        if number is None:
            return
        load = [_operation(_LOAD, _ARGUMENTS + 8 * argument), _operation(_AND, mask & 0xFFFFFFFF)]
        block = [*load, *body, _operation(_LOAD, _NUMBER)]
        self._code += [_operation(_EQUAL, number, 0, len(block)), *block]


def namespaces_filter(*, driver: bool) -> bytes:
    """The filter for a box in its own namespaces, or for its driver, which applies `memory_filter` to its programs."""
    code = Assembler(os.uname().machine)
    _common(code)
    for name in ("socket", "socketpair"):  # of other families: the kernel may load their module
        code.refuse_unless(name, _EQUAL, [AF_UNIX], errno.EACCES)
    if not driver:
        _without_hidden_memory(code)
    return code.finish()


@cache
def memory_filter() -> bytes:
    """The filter for a program whose driver has the rest."""
    code = Assembler(os.uname().machine)
    _without_hidden_memory(code)
    return code.finish()


def one_process_filter(pid: int) -> bytes:
    """The filter for process `pid` without namespaces. It may have threads, but no children or sockets, may signal only
    itself, and changes no file."""
    code = Assembler(os.uname().machine)
    _without_namespaces(code, pid)
    for calls in (DENIED_TO_ONE_PROCESS, MODES_AND_TIMES, TRUNCATE):
        code.deny(calls)
    code.refuse_unless("clone", _ANY_BIT, [CLONE_THREAD], errno.EAGAIN)
    for name in ("kill", "tgkill"):
        code.refuse_unless(name, _EQUAL, [pid], errno.EPERM)
    return code.finish()


def command_filter(*, signals: bool, truncation: bool, own_user: bool) -> bytes:
    """The filter for a process tree without namespaces.

    signals, truncation   whether Landlock confines signals to the tree, and truncation to what it may write
    own_user              whether no file outside belongs to the user of the tree. If some may, changes of mode and time
                          do nothing and report success, even of files of its own: a filter sees no paths
    """
    code = Assembler(os.uname().machine)
    _without_namespaces(code)
    if not signals:
        code.deny(SIGNALS)
    if not truncation:
        code.deny(TRUNCATE)
    if not own_user:
        code.deny(MODES_AND_TIMES, 0)
    return code.finish()


def install(program: bytes) -> None:
    """Applies the filter to this process, which must have `no_new_privs`. This cannot be undone."""
    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))
    if _libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, header, 0, 0):
        raise OSError(ctypes.get_errno(), f"seccomp: {os.strerror(ctypes.get_errno())}")


def _common(code: Assembler, pid: int = 0) -> None:
    """`pid`: the process itself, which it may name where it sets its limits; 0 if it has no name in the box."""
    code.deny(DENIED)
    code.deny(ATTRIBUTES, errno.EOPNOTSUPP)  # as of a file system without them, with which `cp -p` can live
    code.deny(ALLOCATE, errno.EOPNOTSUPP)
    code.deny_from(_UNKNOWN, errno.ENOSYS)
    # A filter cannot read the flags of clone3, which are passed by pointer. On ENOSYS libc falls back to clone.
    code.refuse("clone3", errno.ENOSYS)
    code.refuse_if("clone", _ANY_BIT, [CLONE_NEW_NAMESPACE], errno.EPERM)
    # A thread with descriptors of its own.
    code.refuse_if("clone", _EQUAL, [CLONE_THREAD], errno.EPERM, mask=CLONE_THREAD | _CLONE_FILES)
    code.refuse_unless("prlimit64", _EQUAL, [0, pid], errno.EPERM)
    for name, argument in MODES.items():
        code.refuse_if(name, _ANY_BIT, [_SET_USER_OR_GROUP], errno.EPERM, argument)
    code.refuse("openat2", errno.ENOSYS)  # its flags and mode are passed by pointer
    # Others change attributes of a file, or take disk at once, beyond the size that a file may have.
    code.refuse_unless("ioctl", _EQUAL, [_TERMINAL], errno.ENOTTY, argument=1, mask=_GROUP)
    # Whoever opens a file waits for a lease on it, also outside of the box.
    code.refuse_if("fcntl", _EQUAL, (_F_SETLEASE, _F_NOTIFY), errno.EPERM, argument=1)
    # Locks that the machine's list gives no process.
    code.refuse_if("fcntl", _EQUAL, (_F_OFD_SETLK, _F_OFD_SETLKW), errno.EINVAL, argument=1)


def _without_hidden_memory(code: Assembler) -> None:
    """No memory that a process may fill and then neither map nor have in its resident set, so that nobody counts it.
    /dev/zero is another; no box has it. What waits in a socket is counted by the usual size of its buffer."""
    code.refuse("memfd_create", errno.EPERM)
    code.refuse_if("mmap", _EQUAL, [_MAP_SHARED_ANONYMOUS], errno.EPERM, argument=3, mask=_MAP_KIND)
    code.refuse_if("mmap", _ANY_BIT, [_MAP_HUGETLB], errno.ENOMEM, argument=3)
    # A huge page stays whole while one page of it is used, but only that one is in the resident set.
    code.refuse_if("madvise", _EQUAL, [_MADV_HUGEPAGE, _MADV_PAGEOUT, _MADV_COLLAPSE], errno.EINVAL, argument=2)
    code.refuse_if("prctl", _EQUAL, [_PR_SET_SECCOMP, _PR_SET_DUMPABLE, _PR_SET_THP_DISABLE], errno.EPERM)
    code.deny(PAGES_IN_PIPES, errno.EINVAL)
    code.deny(RULES, errno.EOPNOTSUPP)
    code.refuse_if("setsockopt", _EQUAL, [_SO_SNDBUF, _SO_SNDBUFFORCE], errno.EPERM, argument=2)


def _without_namespaces(code: Assembler, pid: int = 0) -> None:
    _common(code, pid)
    _without_hidden_memory(code)
    code.deny(DENIED_WITHOUT_NAMESPACES)
    for name in ("socket", "socketpair"):
        code.refuse(name, errno.EACCES)
    code.refuse_truncating_a_file_that_is_not_writable("open", 1)
    code.refuse_truncating_a_file_that_is_not_writable("openat", 2)
    # Whom a file signals.
    code.refuse_if("fcntl", _EQUAL, (_F_SETOWN, _F_SETSIG, _F_SETOWN_EX), errno.EPERM, argument=1)


def _operation(code: int, operand: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, operand)
