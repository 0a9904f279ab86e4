"""Attacks on the memory limit: memory that is in no process's resident set, or that of a process which shows none."""

from __future__ import annotations

from dataclasses import replace

from cascade_rl.rl_stages.sandbox.outside.attack import MEMORY, OK, PATIENT, Attack

_HIDE = """
import ctypes, mmap, os
held, block = 0, b"x" * (1 << 20)
libc = ctypes.CDLL(None, use_errno=True); libc.shmat.restype = ctypes.c_void_p

def memfd():
    descriptor = os.memfd_create("m")
    return sum(os.write(descriptor, block) for _ in range(3))

def mapped(descriptor):
    space = mmap.mmap(descriptor, 64 << 20, mmap.MAP_SHARED)
    for _ in range(64): space.write(block)
    space.madvise(mmap.MADV_DONTNEED); spaces.append(space)
    return 64 << 20

def segment():
    number = libc.shmget(0, 64 << 20, 0o1600)
    address = libc.shmat(number, None, 0)
    if address in (None, 2**64 - 1): raise OSError(ctypes.get_errno(), "shmat")
    ctypes.memset(address, 1, 64 << 20); libc.shmdt(ctypes.c_void_p(address)); libc.shmctl(number, 0, None)
    return 64 << 20

spaces = []
def zero(): return mapped(os.open("/dev/zero", os.O_RDWR))
for hide in (memfd, lambda: os.write(0, block), lambda: mapped(-1), zero, segment):
    try:
        print("BREACH", hide())
    except (OSError, ValueError) as error:
        print(error)
"""
_SMALL = replace(PATIENT, memory_mib=96)
_SOCKETS = """
import socket, time
held = 0
try:
    server = socket.socket(socket.AF_UNIX); server.bind("\\0x"); server.listen(4096)
    while held < 512 << 20:
        client = socket.socket(socket.AF_UNIX); client.setblocking(False); client.connect("\\0x")
        try:
            while True: held += client.send(b"x" * 65536)
        except BlockingIOError: pass
        client.close()
    print("BREACH", held, flush=True)
except OSError as error:
    print(error)
"""
_MAPPINGS = """
import ctypes, os, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
told, tell = os.pipe()
try:
    for _ in range(8):
        if os.fork() == 0:
            first = libc.mmap(None, 160 << 20, 1, 0x22, -1, 0)
            for at in range(0, 160 << 20, 8192): libc.mprotect(first + at, 4096, 0)
            os.write(tell, b"x"); time.sleep(60)
    for _ in range(8): os.read(told, 1)
    time.sleep(60); print("BREACH")
except OSError as error:
    print(error)
"""
_EMPTY = """
import os
try:
    for number in range(200_000): os.close(os.open(f"/tmp/{number}", os.O_CREAT | os.O_WRONLY))
    print("BREACH")
except OSError as error:
    print(error)
"""
_BUFFERS = """
import ctypes, fcntl, mmap, os, socket, struct
libc = ctypes.CDLL(None, use_errno=True)
x86 = os.uname().machine == "x86_64"

def large_buffer():
    one, _ = socket.socketpair(); one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)

def call(*arguments):
    if libc.syscall(*arguments) < 0: raise OSError(ctypes.get_errno(), "call")

def attribute(folder):
    open(folder + "/f", "w").close(); os.setxattr(folder + "/f", "user.x", b"x" * 65536)

def disk(folder):
    file = os.open(folder + "/g", os.O_CREAT | os.O_RDWR)
    fcntl.ioctl(file, 0x4030582A, struct.pack("=hhxxxxqqiI16x", 0, 0, 0, 1 << 30, 0, 0))

def of_a_file(move):
    file = os.open("f", os.O_CREAT | os.O_RDWR); os.write(file, b"x" * 4096); move(file)

def filter_calls():
    filters = ctypes.create_string_buffer(struct.pack("=HBBI", 6, 0, 0, 0x7FFF0000))
    call(157 if x86 else 167, 22, 2, struct.pack("@HP", 1, ctypes.addressof(filters)), 0, 0)

tell = os.pipe()[1]
page = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
vector = (ctypes.c_void_p * 2)(ctypes.addressof(ctypes.c_char.from_buffer(page)), 4096)
private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
acts = {
    "buffer": large_buffer,
    "huge pages": lambda: mmap.mmap(-1, 2 << 20, private | 0x40000),
    "swap": lambda: mmap.mmap(-1, 4096, private).madvise(21),
    "gift": lambda: call(278 if x86 else 75, tell, vector, 1, 0),
    "disk at once": lambda: call(285 if x86 else 47, os.open("f", os.O_CREAT | os.O_RDWR), 0, 0, 1 << 20),
    "requests": lambda: call(206 if x86 else 0, 1000, ctypes.byref(ctypes.c_ulong(0))),
    "watches": lambda: call(294 if x86 else 26, 0),
    "other watches": lambda: call(300 if x86 else 262, 0x200, 0),
    "a watched folder": lambda: fcntl.fcntl(os.open(".", os.O_RDONLY), 1026, 1),
    "a lease": lambda: of_a_file(lambda file: fcntl.fcntl(file, 1024, fcntl.F_RDLCK)),
    "a terminal": lambda: os.open("/dev/ptmx", os.O_RDWR),
    "rules": lambda: call(444, ctypes.c_ulong(1), 8, 0),
    "filters": filter_calls,
    "pages of files": lambda: of_a_file(lambda file: os.splice(file, tell, 4096, offset_src=0)),
    "sent pages of files": lambda: of_a_file(lambda file: os.sendfile(tell, file, 0, 4096)),
    "huge pages of the kernel's": lambda: mmap.mmap(-1, 4 << 20, private).madvise(14),
    "huge pages again": lambda: call(157 if x86 else 167, 41, 0, 0, 0, 0),
    "hide": lambda: call(157 if x86 else 167, 4, 0, 0, 0, 0),
    "locks of no process": lambda: of_a_file(lambda file: fcntl.fcntl(file, 37, struct.pack("@hhqqi", 1, 0, 0, 1, 0))),
    "descriptors of a thread": lambda: call(56 if x86 else 220, 0x10B00, 0, 0, 0, 0),
    "more disk at once": lambda: disk("."),
    "more of /tmp at once": lambda: disk("/tmp"),
    **{f"attributes in {folder}": lambda folder=folder: attribute(folder) for folder in (".", "/tmp", "/dev/shm")},
}
for name, act in acts.items():
    try:
        act(); print("BREACH", name)
    except OSError as error:
        print(name, error)
"""
_LEADERS = """
import ctypes, os, threading, time
told, tell = os.pipe()
def hold():
    time.sleep(0.1); block = bytearray(70 << 20); os.write(tell, b"x"); time.sleep(60)
try:
    for _ in range(3):
        if os.fork() == 0:
            threading.Thread(target=hold).start()
            ctypes.CDLL(None).syscall(60 if os.uname().machine == "x86_64" else 93, 0)  # ends the first thread alone
    for _ in range(3): os.read(told, 1)
    time.sleep(60); print("BREACH")
except OSError as error:
    print(error)
"""
_TABLES = """
import ctypes, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
for number in range(1, 14_000):
    at = libc.mmap(number << 30, 4096, 1, 0x100022, -1, 0)
    if at not in (None, 2**64 - 1): ctypes.string_at(at, 1)
time.sleep(60); print("BREACH")
"""
_LOCKS = """
import fcntl, os, time
try:
    file = os.open("/tmp/f", os.O_CREAT | os.O_RDWR)
    for number in range(10_000, 0, -1): fcntl.lockf(file, fcntl.LOCK_EX, 1, 2 * number)
    time.sleep(60); print("BREACH")
except OSError as error:
    print(error)
"""
_WATCHES = """
import os, select, time
told, tell = os.pipe()
try:
    for _ in range(30):
        if os.fork() == 0:
            watched, watching = [os.dup(told) for _ in range(120)], [select.epoll() for _ in range(120)]
            for each in watching:
                for descriptor in watched: each.register(descriptor)
            os.write(tell, b"x"); time.sleep(60)
    for _ in range(30): os.read(told, 1)
    time.sleep(60); print("BREACH")
except OSError as error:
    print(error)
"""


def _hiding(source: str, memory_mib: int = _SMALL.memory_mib) -> Attack:
    return Attack(source, frozenset([OK, MEMORY]), limits=replace(_SMALL, memory_mib=memory_mib))


ATTACKS_ON_MEMORY = {
    "take what nobody counts": Attack(_BUFFERS, frozenset([OK])),
    "take what nobody counts, as a command": Attack(_BUFFERS, frozenset([OK]), is_command=True, limits=PATIENT),
    "hide memory in sockets": Attack(_SOCKETS, frozenset([OK, MEMORY]), limits=_SMALL),
    "hide memory in sockets, as a command": Attack(_SOCKETS, frozenset([OK, MEMORY]), is_command=True, limits=_SMALL),
    "hide memory in mappings": _hiding(_MAPPINGS, 192),
    "hide memory in names": Attack(_EMPTY, frozenset([OK, MEMORY]), limits=_SMALL),
    "hide memory": Attack(_HIDE, frozenset([OK])),
    "hide memory, as a command": Attack(_HIDE, frozenset([OK]), is_command=True, limits=PATIENT),
    "hide memory behind a thread that has ended": _hiding(_LEADERS, 192),
    "hide memory in page tables": _hiding(_TABLES),
    "hide memory in locks": _hiding(_LOCKS),
    "hide memory in watches": _hiding(_WATCHES),
}
