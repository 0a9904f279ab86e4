"""Programs and commands that attack their box. One that succeeds prints BREACH, or harms a victim.

`statuses` are the acceptable outcomes.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import dataclass, replace

from cascade_rl.rl_stages.sandbox.errors import SandboxFailure
from cascade_rl.rl_stages.sandbox.limits import Limits
from cascade_rl.rl_stages.sandbox.outside.pool import Sandbox
from cascade_rl.rl_stages.sandbox.outside.program import Program, Status
from cascade_rl.rl_stages.sandbox.outside.victims import victims

LIMITS = Limits(cpu_seconds=0.3, memory_mib=1024, file_mib=4)
STRAY = "sandbox-stray"  # argv[0] of the processes that an attack leaves running
SECRET = "sandbox-secret"  # an attack looks for it in its environment

OK, ERROR, TIME, MEMORY, OUTPUT = Status
ENDED = frozenset({OK, ERROR})


@dataclass(frozen=True)
class Attack:
    source: str
    statuses: frozenset[Status]
    stdin: bytes = b"1 2\n"
    on_victims: bool = False
    is_command: bool = False
    turns: int = 1  # of a command, in one folder
    limits: Limits = LIMITS

    def tried(self, sandbox: Sandbox) -> str | None:
        """What is wrong with the outcome; None if the attack was contained."""
        with victims() if self.on_victims else nullcontext() as harmed:
            try:
                failure = self._failure(*self._outcome(sandbox, harmed.names if harmed else self.stdin))
            except SandboxFailure as lost:
                return f"it has no score: {lost}"
            return failure or (harmed.harm() if harmed else None)

    def _outcome(self, sandbox: Sandbox, stdin: bytes) -> tuple[Status, str]:
        """The status, and all output."""
        if self.is_command:
            return self._outcome_of_commands(sandbox, stdin)
        test = sandbox.run_program(Program(language="python", source=self.source, limits=self.limits), [stdin]).tests[0]
        return test.status, test.output.decode(errors="replace") + test.errors

    def _outcome_of_commands(self, sandbox: Sandbox, stdin: bytes) -> tuple[Status, str]:
        with sandbox.folder({}) as folder:
            for _ in range(self.turns):
                run = sandbox.run_command([sys.executable, "-c", self.source], folder, self.limits, stdin)
        left = "\nBREACH its folder is still there" if folder.path.exists() else ""
        return run.status, run.output + left

    def _failure(self, status: Status, output: str) -> str | None:
        breaches = [line for line in output.splitlines() if line.startswith("BREACH")]
        if breaches:
            return breaches[0]
        return None if status in self.statuses else f"{status}: {output[-200:]}"


def _attack(source: str, *statuses: Status, stdin: bytes = b"1 2\n") -> Attack:
    return Attack(source, frozenset(statuses or ENDED), stdin)


def _fill(folder: str) -> Attack:
    return _attack(f"""
import os
written = 0
try:
    for number in range(40):
        with open({folder!r} + f"/{{number}}", "wb", buffering=0) as file:
            written += file.write(b"x" * (1 << 20))
except OSError as error:
    print("stopped", error)
print("BREACH" if written > {LIMITS.file_mib} << 20 else "", written)
""")


_HARM = Attack(
    """
import ctypes, fcntl, json, os, signal
victims = json.loads(input())
file, folder, pid = victims["file"], os.path.dirname(victims["file"]), victims["process"]
libc = ctypes.CDLL(None, use_errno=True); libc.shmat.restype = ctypes.c_void_p
x86 = os.uname().machine == "x86_64"

def owned(number):
    told, tell = os.pipe()
    fcntl.fcntl(told, 10, number); fcntl.fcntl(told, fcntl.F_SETOWN, pid)
    fcntl.fcntl(told, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK); os.write(tell, b"x")

def segment():
    address = libc.shmat(victims["segment"], None, 0)
    if address in (None, 2**64 - 1): return libc.shmctl(victims["segment"], 0, None)
    print("BREACH segment", ctypes.string_at(address, 14)); ctypes.memmove(address, b"changed", 7)

def flags():
    descriptor = os.open("/usr/bin/env", os.O_RDONLY)
    fcntl.ioctl(descriptor, 0x40086602, b"\\0" * 8)

acts = [segment, flags, lambda: owned(9), lambda: owned(19), lambda: os.chmod(file, 0o666),
        lambda: os.chmod(folder, 0o777), lambda: os.utime(file, (1, 1)), lambda: os.utime(folder, (1, 1)),
        lambda: os.setxattr(file, "user.x", b"1"), lambda: os.chown(file, -1, (os.getgroups() or [os.getgid()])[-1]),
        lambda: os.truncate(file, 0), lambda: os.open(file, os.O_TRUNC), lambda: os.open(file, os.O_TRUNC | 3),
        lambda: os.open(file, os.O_TRUNC | os.O_WRONLY), lambda: os.symlink("x", file + "y"),
        lambda: os.mkdir(file + "z"), lambda: os.link(file, file + "l"), lambda: os.rename(file, file + "x"),
        lambda: os.setpriority(os.PRIO_PROCESS, pid, 19), lambda: os.kill(pid, 19), lambda: os.kill(pid, 9),
        lambda: libc.syscall(200 if x86 else 130, pid, 9), lambda: libc.syscall(234 if x86 else 131, pid, pid, 9),
        lambda: signal.pidfd_send_signal(os.pidfd_open(pid), 9)]
for act in acts:
    try:
        act()
    except OSError as error:
        print(error)
""",
    frozenset([OK]),
    on_victims=True,
)
_DEEP = """
import os
for _ in range(3000):
    os.mkdir("d"); os.chdir("d")
"""
_CLOSED = """
import os
for name in ("a", "b/c"):
    os.makedirs(name + "/d"); open(name + "/f", "w").write("x"); os.chmod(name, 0)
os.chmod("b", 0); os.chmod(".", 0)
"""
_FILL = """
import os
for number in range(12):
    with open(f"{os.getpid()}-{os.urandom(8).hex()}", "wb") as file: file.write(b"x" * (4 << 20))
"""
_MANY = """
import os
for number in range(100_000): os.close(os.open(f"f{number}", os.O_CREAT | os.O_WRONLY))
"""
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
_ANOTHERS = """
import ctypes, os, stat
os.umask(0)
libc = ctypes.CDLL(None, use_errno=True)
def opened(name): os.close(os.open(name, os.O_CREAT | os.O_WRONLY, 0o6755))
def changed(name): open(name, "w").close(); os.chmod(name, 0o4755)
def grouped(name): file = os.open(name, os.O_CREAT | os.O_RDWR); os.fchmod(file, 0o2755)
def second(name): open(name, "w").close(); libc.syscall(452, -100, name.encode(), 0o4755, 0)
acts = {"opened": opened, "changed": changed, "grouped": grouped, "second": second,
        "node": lambda name: os.mknod(name, stat.S_IFREG | 0o6755)}
for name, act in acts.items():
    try:
        act(name)
    except OSError as error:
        print(name, error)
    if os.path.exists(name) and os.stat(name).st_mode & 0o6000: print("BREACH", name)
"""
_SMALL = replace(LIMITS, cpu_seconds=2.0, memory_mib=96)
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
    time.sleep(0.2); print("BREACH")
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
    **{f"attributes in {folder}": lambda folder=folder: attribute(folder) for folder in (".", "/tmp", "/dev/shm")},
}
for name, act in acts.items():
    try:
        act(); print("BREACH", name)
    except OSError as error:
        print(name, error)
"""
_NAMELESS = """
import ctypes, mmap, os, time
if {hidden}: ctypes.CDLL(None).prctl(4, 0)
kept = []
for number in range(60):
    file = os.open("f", os.O_CREAT | os.O_RDWR); os.unlink("f"); os.write(file, b"x" * (2 << 20))
    kept.append(mmap.mmap(file, 4096) if {mapped} else file)
    if {mapped}: os.close(file)
time.sleep(0.6); print("BREACH")
"""


def _nameless(*, mapped: bool = False, hidden: bool = False) -> Attack:
    return Attack(_NAMELESS.format(mapped=mapped, hidden=hidden), frozenset([OUTPUT]), is_command=True)


ATTACKS = {
    "take what nobody counts": Attack(_BUFFERS, frozenset([OK])),
    "take what nobody counts, as a command": Attack(_BUFFERS, frozenset([OK]), is_command=True),
    "hide memory in sockets": Attack(_SOCKETS, frozenset([OK, MEMORY]), limits=_SMALL),
    "hide memory in sockets, as a command": Attack(_SOCKETS, frozenset([OK, MEMORY]), is_command=True, limits=_SMALL),
    "hide memory in mappings": Attack(_MAPPINGS, frozenset([OK, MEMORY, TIME]), limits=replace(_SMALL, memory_mib=192)),
    "hide memory in names": Attack(_EMPTY, frozenset([OK, MEMORY]), limits=_SMALL),
    "fill the disk without a name": _nameless(),
    "fill the disk without a name, only mapped": _nameless(mapped=True),
    "fill the disk without a name, and hide it": _nameless(hidden=True),
    "hide memory": Attack(_HIDE, frozenset([OK])),
    "hide memory, as a command": Attack(_HIDE, frozenset([OK]), is_command=True),
    "leave files that run as another": Attack(_ANOTHERS, frozenset([OK]), is_command=True),
    "nest folders": Attack(_DEEP, frozenset([OUTPUT]), is_command=True, turns=2),
    "close folders": Attack(_CLOSED, ENDED, is_command=True, turns=2),
    "fill the disk over an episode": Attack(_FILL, frozenset([OUTPUT]), is_command=True, turns=4),
    "make a hundred thousand files": Attack(_MANY, frozenset([OUTPUT, TIME]), is_command=True),
    "harm what is outside": _HARM,
    "harm what is outside, as a command": replace(_HARM, is_command=True),
    "honest": _attack("print(sum(map(int, input().split())))", OK),
    "loop": _attack("while True: pass", TIME),
    "sleep": _attack("import time; time.sleep(100)", TIME),
    "allocate": _attack("b = bytearray(2 << 30); print('BREACH')", MEMORY),
    "allocate in children": _attack(
        """
import os, time
told, tell = os.pipe()
for _ in range(30):
    try:
        if os.fork() == 0:
            block = bytearray(100 << 20); os.write(tell, b"x"); time.sleep(60); os._exit(0)
    except OSError as error:
        print("stopped", error); break
else:
    for _ in range(20):  # hold what they took all at once
        os.read(told, 1)
    print("BREACH")
""",
        OK,
        MEMORY,
        ERROR,
        TIME,
    ),
    "fork bomb": _attack(
        """
import os, time
count = 0
try:
    while count < 500:
        if os.fork() == 0:
            time.sleep(5); os._exit(0)
        count += 1
    print("BREACH", count)
except OSError as error:
    print("stopped", count, error)
""",
        *ENDED,
        TIME,  # 64 forks on a busy machine
    ),
    "fill the working folder": _fill("."),
    "fill /tmp": _fill("/tmp"),
    "fill /dev/shm": _fill("/dev/shm"),
    "fill /dev": _fill("/dev"),
    "fill /": _fill("/"),
    "truncate to 1 TiB": _attack(
        """
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for path in ("/tmp/big", "big", "/dev/shm/big"):
    try:
        open(path, "wb").truncate(1 << 40); print("BREACH", path)
    except OSError as error:
        print(path, error)
"""
    ),
    "sockets": _attack("""
import socket
for family in (2, 10, 16, 17, 30, 38, 40):  # IPv4, IPv6, netlink, packet, TIPC, crypto, vsock
    for kind in (1, 2, 3, 5):
        for make in (socket.socket, socket.socketpair):
            try:
                make(family, kind); print("BREACH", family, kind)
            except OSError as error:
                print(family, kind, error, "" if error.errno == 13 else "\\nBREACH the kernel looked for a module")
"""),
    "read secrets": _attack(f"""
import os
for path in ("/root/.bashrc", "/home", "/etc/shadow", "/etc/passwd", "/srv", "/var", "/sys", "/run",
             "/proc/1/environ", f"/proc/{{os.getppid()}}/environ", f"/proc/{{os.getppid()}}/mem", "/proc/1/root/home"):
    try:
        found = os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(200)
        if found: print("BREACH", path, found)
    except OSError as error:
        print(path, error)
if {SECRET!r} in str(os.environ): print("BREACH environment")
"""),
    "daemon": _attack(f"""
import os, signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in (0, 1, 2): os.close(number)
        for number in (1, 2, 13, 15): signal.signal(number, signal.SIG_IGN)
        os.execv("/bin/sleep", ["{STRAY}", "300"])
    os._exit(0)
time.sleep(0.1); print("done")
"""),
    "daemon that holds stdout": _attack(f"""
import os, time
if os.fork() == 0:
    os.setsid(); os.execv("/bin/sleep", ["{STRAY}", "300"])
time.sleep(0.1); print("done", flush=True)
"""),
    "flood stdout": _attack("import sys\nwhile True: sys.stdout.write('A' * 65536)", OUTPUT),
    "flood stderr": _attack("import sys\nwhile True: sys.stderr.write('A' * 65536)", OUTPUT),
    "recursion": _attack(
        "import sys; sys.setrecursionlimit(10**9)\ndef f(n): return f(n + 1)\nf(0)", ERROR, MEMORY, TIME
    ),
    "kill the parent": _attack("""
import os
for pid in (os.getppid(), 1, -1):
    try:
        os.kill(pid, 9)
    except OSError as error:
        print(pid, error)
"""),
    "ignore signals": _attack(
        """
import signal
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
while True: pass
""",
        TIME,
    ),
    "kernel doors": _attack("""
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
x86 = os.uname().machine == "x86_64"
calls = {
    "ptrace": (101 if x86 else 117, 16, 1, 0, 0), "unshare": (272 if x86 else 97, 0x10000000),
    "mount": (165 if x86 else 40, b"none", b"/tmp", b"tmpfs", 0, None), "io_uring_setup": (425, 8, 0),
    "keyctl": (250 if x86 else 219, 0, -3, 0), "bpf": (321 if x86 else 280, 0, 0, 0), "clone3": (435, 0, 0),
}
for name, call in calls.items():
    if libc.syscall(*call) >= 0 or ctypes.get_errno() not in (1, 38): print("BREACH", name, ctypes.get_errno())
"""),
    "write to the system": _attack("""
import sys
for path in ("/usr/x", "/etc/x", "/x", sys.base_prefix + "/x", sys.exec_prefix + "/bin/x", "/mnt/x"):
    try:
        open(path, "w"); print("BREACH", path)
    except OSError as error:
        print(path, error)
"""),
    "threads": _attack("""
import threading, time
count = 0
try:
    for _ in range(1000):
        threading.Thread(target=time.sleep, args=(3,), daemon=True).start(); count += 1
    print("BREACH", flush=True)
except RuntimeError as error:
    print(count, error, flush=True)
import os; os._exit(0)
"""),
    "forge the judge's answer": _attack(
        """
import json, os, struct
head = {"status": "ok", "exit_code": 0, "cpu_seconds": 0.0, "wall_seconds": 0.0, "errors": ""}
forged = [(json.dumps(head | change).encode(), b"BREACH") for change in ({}, {"status": "starved"})]
frames = [struct.pack("<II", len(text), len(body)) + text + body for text, body in (*forged, (b"{", b""))]
doors = [f"/proc/{pid}/fd/{number}" for pid in {1, 2, os.getppid()} - {os.getpid()} for number in range(20)]
for door in doors + list(range(3, 256)):
    try:
        descriptor = os.open(door, os.O_WRONLY) if isinstance(door, str) else door
        for frame in (*frames, struct.pack("<II", 2, 1 << 31) + b"{}"): os.write(descriptor, frame)
        print("BREACH", door)
    except OSError:
        pass
""",
        OK,
    ),
    "starve behind children": _attack(
        """
import os
for _ in range(55):
    if os.fork() == 0:
        while True: pass
while True: pass
""",
        TIME,
        ERROR,
    ),
    "starve behind children that nobody counts": _attack(
        """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for _ in range(25):
    if os.fork() == 0:
        while True:
            if os.fork() == 0:
                end = time.process_time() + 0.02
                while time.process_time() < end: pass
                os._exit(0)
            time.sleep(0.02)
while True: pass
""",
        TIME,
        ERROR,
    ),
    "stop the judge and burn": _attack(
        """
import os, signal
for pid in (os.getppid(), 1):
    try:
        os.kill(pid, signal.SIGSTOP)
    except OSError as error:
        print(pid, error)
for _ in range(40):
    if os.fork() == 0: break
while True: pass
""",
        TIME,
        ERROR,
    ),
    "cut the judge's limits": _attack(
        """
import os, resource
for pid in (os.getppid(), 1):
    for limit in (resource.RLIMIT_CPU, resource.RLIMIT_NOFILE, resource.RLIMIT_AS):
        try:
            resource.prlimit(pid, limit, (0, 0)); print("BREACH", pid, limit)
        except OSError as error:
            print(pid, error)
"""
    ),
    "step back for others": _attack("""
import os
for name, act in {
    "nice": lambda: os.nice(19), "idle": lambda: os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0)),
    "one processor": lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}),
    "group": lambda: open("/proc/self/autogroup", "w").write("19"),
    "first to be killed": lambda: open("/proc/self/oom_score_adj", "w").write("1000"),
}.items():
    try:
        act(); print("BREACH", name)
    except OSError as error:
        print(name, error)
"""),
    "unread stdin": _attack("print('hi')", OK, stdin=b"x" * (8 << 20)),
}
SLOW = ("loop", "sleep", "ignore signals", "recursion", "allocate in children")  # `cascade doctor` leaves them out
