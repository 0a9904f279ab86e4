"""Programs and commands that attack their box."""

from __future__ import annotations

from dataclasses import replace

from cascade_rl.rl_stages.sandbox.outside.attack import (
    ENDED,
    ERROR,
    LIMITS,
    MEMORY,
    OK,
    OUTPUT,
    PATIENT,
    TIME,
    Attack,
    attack,
)
from cascade_rl.rl_stages.sandbox.outside.attacks_on_memory import ATTACKS_ON_MEMORY

STRAY = "sandbox-stray"  # argv[0] of the processes that an attack leaves running
SECRET = "sandbox-secret"  # an attack looks for it in its environment


def _fill(folder: str) -> Attack:
    return attack(f"""
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
_NAMELESS = """
import ctypes, mmap, os, time
if {hidden}: ctypes.CDLL(None).prctl(4, 0)
kept = []
for number in range(60):
    file = os.open("f", os.O_CREAT | os.O_RDWR); os.unlink("f"); os.write(file, b"x" * (2 << 20))
    kept.append(mmap.mmap(file, 4096) if {mapped} else file)
    if {mapped}: os.close(file)
time.sleep(60); print("BREACH")
"""


def _nameless(*, mapped: bool = False, hidden: bool = False) -> Attack:
    return Attack(_NAMELESS.format(mapped=mapped, hidden=hidden), frozenset([OUTPUT]), is_command=True, limits=PATIENT)


ATTACKS = {
    **ATTACKS_ON_MEMORY,
    "fill the disk without a name": _nameless(),
    "fill the disk without a name, only mapped": _nameless(mapped=True),
    "fill the disk without a name, and hide it": _nameless(hidden=True),
    "leave files that run as another": Attack(_ANOTHERS, frozenset([OK]), is_command=True, limits=PATIENT),
    "say what is no command": Attack("print(1)\0", frozenset([ERROR]), is_command=True),
    "say more than a command": Attack("#" * 140_000, frozenset([ERROR]), is_command=True),
    "nest folders": Attack(_DEEP, frozenset([OUTPUT]), is_command=True, turns=2),
    "close folders": Attack(_CLOSED, ENDED, is_command=True, turns=2, limits=PATIENT),
    "fill the disk over an episode": Attack(_FILL, frozenset([OUTPUT]), is_command=True, turns=4),
    "make a hundred thousand files": Attack(_MANY, frozenset([OUTPUT, TIME]), is_command=True),
    "harm what is outside": _HARM,
    "harm what is outside, as a command": replace(_HARM, is_command=True, limits=PATIENT),
    "honest": attack("print(sum(map(int, input().split())))", OK),
    "loop": attack("while True: pass", TIME),
    "sleep": attack("import time; time.sleep(100)", TIME),
    "allocate": attack("b = bytearray(2 << 30); print('BREACH')", MEMORY),
    "allocate in children": attack(
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
    "fork bomb": attack(
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
    "truncate to 1 TiB": attack(
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
    "sockets": attack("""
import socket
for family in (2, 10, 16, 17, 30, 38, 40):  # IPv4, IPv6, netlink, packet, TIPC, crypto, vsock
    for kind in (1, 2, 3, 5):
        for make in (socket.socket, socket.socketpair):
            try:
                make(family, kind); print("BREACH", family, kind)
            except OSError as error:
                print(family, kind, error, "" if error.errno == 13 else "\\nBREACH the kernel looked for a module")
"""),
    "read secrets": attack(f"""
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
    "daemon": attack(f"""
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
    "daemon that holds stdout": attack(f"""
import os, time
if os.fork() == 0:
    os.setsid(); os.execv("/bin/sleep", ["{STRAY}", "300"])
time.sleep(0.1); print("done", flush=True)
"""),
    "flood stdout": attack("import sys\nwhile True: sys.stdout.write('A' * 65536)", OUTPUT),
    "flood stderr": attack("import sys\nwhile True: sys.stderr.write('A' * 65536)", OUTPUT),
    "recursion": attack(
        "import sys; sys.setrecursionlimit(10**9)\ndef f(n): return f(n + 1)\nf(0)", ERROR, MEMORY, TIME
    ),
    "kill the parent": attack("""
import os
for pid in (os.getppid(), 1, -1):
    try:
        os.kill(pid, 9)
    except OSError as error:
        print(pid, error)
"""),
    "ignore signals": attack(
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
    "kernel doors": attack("""
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
    "write to the system": attack("""
import sys
for path in ("/usr/x", "/etc/x", "/x", sys.base_prefix + "/x", sys.exec_prefix + "/bin/x", "/mnt/x"):
    try:
        open(path, "w"); print("BREACH", path)
    except OSError as error:
        print(path, error)
"""),
    "threads": attack("""
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
    "forge the judge's answer": attack(
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
    "starve behind children": attack(
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
    "starve behind children that nobody counts": attack(
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
    "stop the judge and burn": attack(
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
    "cut the judge's limits": attack(
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
    "step back for others": attack("""
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
    "unread stdin": attack("print('hi')", OK, stdin=b"x" * (8 << 20)),
}
SLOW = ("loop", "sleep", "ignore signals", "recursion", "allocate in children")  # `cascade doctor` leaves them out
