"""The system calls that a box may not make, as a classic BPF program assembled by hand.

It supports x86_64 and aarch64, for which the kernel numbers the calls differently: asm/unistd_64.h and
asm-generic/unistd.h. This module also runs in the box.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

CLONE_THREAD = 0x10000
CLONE_NEW_NAMESPACE = 0x7E020000  # cgroup, uts, ipc, user, pid, net, mount
AF_UNIX = 1

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCH, _ARGUMENT_0 = 0, 4, 16  # offsets in struct seccomp_data
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000

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
    "vhangup": (153, 58),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
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
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
}
DENIED_TO_ONE_PROCESS: dict[str, tuple[int | None, int | None]] = {
    "fork": (57, None),
    "vfork": (58, None),
    "setsid": (112, 157),
    "setpgid": (109, 154),
    "tkill": (200, 130),
}
_FILTERED: dict[str, tuple[int, int]] = {
    "socket": (41, 198),
    "socketpair": (53, 199),
    "clone": (56, 220),
    "clone3": (435, 435),
    "kill": (62, 129),
    "tgkill": (234, 131),
    "prlimit64": (302, 261),
}


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

    def deny(self, calls: dict[str, tuple[int | None, int | None]]) -> None:
        for numbers in calls.values():
            number = numbers[self._column]
            if number is not None:
                self.refuse(number, errno.EPERM)

    def refuse(self, number: int, error: int) -> None:
        self._code += [_operation(_EQUAL, number, 0, 1), _operation(_RETURN, _ERRNO | error)]

    def filtered(self, name: str) -> int:
        return _FILTERED[name][self._column]

    def refuse_unless(self, name: str, test: int, operands: list[int], error: int) -> None:
        """Refuses the call unless `test` holds for its first argument and one of `operands`."""
        count = len(operands)
        checks = [_operation(test, value, count - index, 0) for index, value in enumerate(operands)]
        self._if_called(name, [*checks, _operation(_RETURN, _ERRNO | error)])

    def refuse_if_any_bit(self, name: str, bits: int, error: int) -> None:
        self._if_called(name, [_operation(_ANY_BIT, bits, 0, 1), _operation(_RETURN, _ERRNO | error)])

    def finish(self) -> bytes:
        return b"".join([*self._code, _operation(_RETURN, _ALLOW)])

    def _if_called(self, name: str, body: list[bytes]) -> None:
        block = [_operation(_LOAD, _ARGUMENT_0), *body, _operation(_LOAD, _NUMBER)]
        self._code += [_operation(_EQUAL, self.filtered(name), 0, len(block)), *block]


def namespaces_filter() -> bytes:
    """The filter for a box in its own namespaces."""
    code = Assembler(os.uname().machine)
    _common(code)
    code.refuse_unless("socket", _EQUAL, [AF_UNIX], errno.EACCES)
    return code.finish()


def one_process_filter(pid: int) -> bytes:
    """The filter for process `pid` without namespaces. It may have threads, but no children or sockets, and may signal
    only itself."""
    code = Assembler(os.uname().machine)
    _without_namespaces(code, pid)
    code.deny(DENIED_TO_ONE_PROCESS)
    code.refuse_unless("clone", _ANY_BIT, [CLONE_THREAD], errno.EAGAIN)
    for name in ("kill", "tgkill"):
        code.refuse_unless(name, _EQUAL, [pid], errno.EPERM)
    return code.finish()


def command_filter(signals: bool) -> bytes:
    """The filter for a process tree without namespaces. `signals`: whether Landlock confines signals to the tree."""
    code = Assembler(os.uname().machine)
    _without_namespaces(code)
    if not signals:
        for name in ("kill", "tgkill"):
            code.refuse(code.filtered(name), errno.EPERM)
    return code.finish()


def install(program: bytes) -> None:
    """Applies the filter to this process, which must have `no_new_privs`. This cannot be undone."""
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))
    if libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, header, 0, 0):
        raise OSError(ctypes.get_errno(), f"seccomp: {os.strerror(ctypes.get_errno())}")


def _common(code: Assembler, pid: int = 0) -> None:
    """`pid`: the process itself, which it may name where it sets its limits; 0 if it has no name in the box."""
    code.deny(DENIED)
    # A filter cannot read the flags of clone3, which are passed by pointer. On ENOSYS libc falls back to clone.
    code.refuse(code.filtered("clone3"), errno.ENOSYS)
    code.refuse_if_any_bit("clone", CLONE_NEW_NAMESPACE, errno.EPERM)
    code.refuse_unless("prlimit64", _EQUAL, [0, pid], errno.EPERM)


def _without_namespaces(code: Assembler, pid: int = 0) -> None:
    _common(code, pid)
    code.deny(DENIED_WITHOUT_NAMESPACES)
    for name in ("socket", "socketpair"):
        code.refuse(code.filtered(name), errno.EACCES)


def _operation(code: int, operand: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, operand)
