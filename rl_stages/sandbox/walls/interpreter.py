"""The files of this machine that a box may see: the system's programs, and this Python with its packages."""

from __future__ import annotations

import marshal
import os
import sys
import sysconfig
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64")  # in addition to /usr, unless they are links into it
ETC = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime")
EXECUTABLE = os.path.realpath(sys.executable)
PACKAGES = [sysconfig.get_path("purelib")]
_WALLS = ("landlock", "seccomp", "confinement")
_INSIDE = "frames values assertions preamble recursion python_program cpp_program driver"
_DRIVER = (
    "cascade_rl.engine.core.parent_death",
    *(f"cascade_rl.rl_stages.sandbox.{name}" for name in ("limits", "memory_file")),
    *(f"cascade_rl.rl_stages.sandbox.walls.{name}" for name in _WALLS),
    *(f"cascade_rl.rl_stages.sandbox.inside.{name}" for name in _INSIDE.split()),
)
# Isolated and without `site`, Python starts in 10 ms of processor time. The modules come through stdin, since the box
# cannot see their folder.
_BOOT = """
import marshal, os, sys, types
code = b""
while len(code) < {length}: code += os.read(0, {length} - len(code)) or sys.exit("stdin ended")
for name, body in marshal.loads(code):
    package, _, short = name.rpartition(".")
    module = sys.modules[name] = types.ModuleType(name)
    setattr(sys.modules.setdefault(package, types.ModuleType(package)), short, module)
    exec(body, module.__dict__)
module.main()
"""


def prefixes() -> list[str]:
    """Folders outside /usr that this Python needs."""
    found = {os.path.realpath(sys.prefix), os.path.realpath(sys.base_prefix), os.path.dirname(EXECUTABLE)}
    found |= {sys.prefix, sys.base_prefix}
    return sorted(path for path in found if not Path(path).is_relative_to("/usr"))


def readable(extra: Sequence[str] = ()) -> list[str]:
    return ["/usr", *SYSTEM, *ETC, *prefixes(), *extra]


def at_each_root(hidden: Sequence[str]) -> list[str]:
    """Real paths as the paths at which a box reaches them. Two of its folders may be one here."""
    roots = [(root, os.path.realpath(root)) for root in readable()]
    return [root + path[len(real) :] for path in hidden for root, real in roots if Path(path).is_relative_to(real)]


def environment(home: str, temporary: str) -> dict[str, str]:
    """The environment variables in a box. numpy gets one thread: cores are shared, and the same work must take the same
    time."""
    binaries = [f"{prefix}/bin" for prefix in (sys.prefix, sys.base_prefix)]
    return {
        "PATH": ":".join([*binaries, "/usr/bin", "/bin"]),
        "HOME": home,
        "TMPDIR": temporary,
        "USER": "box",
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }


def driver() -> tuple[list[str], bytes]:
    """The command line of the driver, and the bytes that it reads first from stdin."""
    code = marshal.dumps([(name, _compiled(name)) for name in _DRIVER])
    boot = _BOOT.format(length=len(code))
    return [EXECUTABLE, "-I", "-S", "-W", "ignore", "-c", boot], code


def _compiled(module: str) -> object:
    spec = find_spec(module)
    assert spec and spec.origin
    return compile(Path(spec.origin).read_bytes(), f"<{module}>", "exec", dont_inherit=True)
