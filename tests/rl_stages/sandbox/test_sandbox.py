"""What programs and commands give, in every tier that this machine has."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from cascade_rl.engine.cluster.node import ThisNode
from cascade_rl.rl_stages.sandbox import (
    CompilerUnavailable,
    Folder,
    Limits,
    Program,
    Sandbox,
    SandboxFailure,
    SandboxUnavailable,
    Status,
    TestRun,
    Tier,
    process_tree,
)
from cascade_rl.rl_stages.sandbox.outside import slot
from cascade_rl.rl_stages.sandbox.outside.probe import probe, strongest
from cascade_rl.rl_stages.sandbox.walls import bubblewrap
from cascade_rl.rl_stages.sandbox.walls.interpreter import driver
from tests.until import LIMIT_S

SUM = Program(language="python", source="print(sum(map(int, input().split())))")


@pytest.fixture(scope="module")
def sandbox(tier_sandbox: Sandbox) -> Sandbox:
    return tier_sandbox


def outputs(sandbox: Sandbox, source: str, *inputs: bytes) -> list[bytes]:
    run = sandbox.run_program(Program(language="python", source=source), inputs)
    assert [test.status for test in run.tests] == [Status.OK] * len(inputs), run
    return [test.output for test in run.tests]


# The programs that LiveCodeBench's and NeMo-Gym's test runners reject although they are right.
@pytest.mark.parametrize(
    "source",
    [
        "import sys\na = sys.stdin.buffer.readline(); b = sys.stdin.buffer.readline(); print(int(a) + int(b))",
        "import sys\nsys.stdout.buffer.write(b'%d\\n' % sum(map(int, sys.stdin)))",
        "import os, sys\nos.write(1, b'%d\\n' % sum(map(int, sys.stdin)))",
        "total = 0\ndef add(n):\n    global total\n    total += n\nadd(int(input())); add(int(input())); print(total)",
        "print(sum(map(int, open(0).read().split())))",
        "print(sum(map(int, open('/dev/stdin'))))",
        "import threading\nthreading.Thread(target=lambda: print(int(input()) + int(input()))).start()",
        "import atexit\natexit.register(lambda: print(int(input()) + int(input())))",
        "import sys\nsys.stdin.read(); sys.stdin.seek(0); print(sum(map(int, sys.stdin)))",
        "if __name__ == '__main__':\n    print(int(input()) + int(input()))\n    exit(0)",
    ],
)
def test_right_programs_pass(sandbox: Sandbox, source: str) -> None:
    if "/dev/stdin" in source and sandbox.tier is Tier.NAMESPACES_WITHOUT_PROC:
        pytest.skip("there is no /dev/stdin without /proc")
    assert outputs(sandbox, source, b"1\n2\n", b"30\n4\n") == [b"3\n", b"34\n"]


# A wrong program that they accept. Programs that look for the expected result: verifiers/programs/test_code.py.
def test_a_result_that_is_equal_to_anything_has_no_form(sandbox: Sandbox) -> None:
    equal = "class Same:\n    def __eq__(self, other): return True\ndef f(x): return Same()"
    run = sandbox.run_program(Program(language="python", source=equal, mode="call", entry="f"), [b"[1]"])
    assert run.tests[0].status is Status.RUNTIME_ERROR and "Same has no form in JSON" in run.tests[0].errors


def test_a_function_is_called_with_json_and_answers_in_json(sandbox: Sandbox) -> None:
    source = """
from collections import deque
class Solution:
    def lists(self, head: Optional[ListNode], k: int) -> Optional[ListNode]:
        print("not the result")
        while k: head, k = head.next, k - 1
        return head
    def tree(self, root: Optional[TreeNode]): return TreeNode(root.val, root.right, root.left)
    def plain(self, n: int): return (n, {3, 1, 2}, deque([True]), {"a": None}, 0.5, range(2), {1: (2,)})
    def numpy(self, n):
        import numpy
        return numpy.arange(n), numpy.float64(0.5)
"""

    def call(entry: str, test: bytes) -> TestRun:
        program = Program(language="python", source=source, mode="call", entry=entry)
        return sandbox.run_program(program, [test]).tests[0]

    lists = call("lists", b"[[1, 2, 3], 1]")
    assert (lists.output, lists.errors) == (b"[2, 3]", "not the result\n")
    assert call("Solution.tree", b"[[1, 2, 3, null, 4]]").output == b"[1, 3, 2, null, null, null, 4]"
    assert call("plain", b"[7]").output == b'[7, [1, 2, 3], [true], {"a": null}, 0.5, [0, 1], {"1": [2]}]'
    assert call("numpy", b"[3]").output == b"[[0, 1, 2], 0.5]"
    assert call("missing", b"[]").status is Status.RUNTIME_ERROR


def test_assertions_must_come_to_their_end(sandbox: Sandbox) -> None:
    program = Program(language="python", source="def f(x): return x + 1\n@staticmethod", mode="assert", entry="f")
    assert sandbox.run_program(program, [b"def check(): assert False"]).compile_error  # a decorator of the test's
    program = Program(language="python", source="def f(x): return x + 1", mode="assert", entry="f")
    tests = [b"assert f(1) == 2", b"assert f(1) == 3", b"raise SystemExit(0)", b"import os; os._exit(0)", b"f("]
    runs = sandbox.run_program(program, [*tests, tests[0]]).tests
    assert [test.status for test in runs] == [Status.OK] + [Status.RUNTIME_ERROR] * 4 + [Status.OK]
    assert {test.output for test in runs} == {b""}
    assert "AssertionError" in runs[1].errors


def test_assertions_and_their_program_share_one_limit_of_time(sandbox: Sandbox) -> None:
    for source, test in (("def f(x):\n    while True: pass", b"f(1)"), ("def f(x): pass", b"while True: pass")):
        program = Program(language="python", source=source, mode="assert", entry="f", limits=Limits(cpu_seconds=0.3))
        run = sandbox.run_program(program, [test]).tests[0]
        assert run.status is Status.TIME_LIMIT, source


def test_compile_errors(sandbox: Sandbox) -> None:
    for source in ("def f(", "\0", "x = '\ud800'", "(" * 10_000, "-" * 200_000 + "1"):
        run = sandbox.run_program(Program(language="python", source=source), [b""])
        assert run.compile_error and not run.tests, source[:10]


def test_fifty_tests_and_stop_on(sandbox: Sandbox) -> None:
    tests = [b"%d 1\n" % number for number in range(50)]
    run = sandbox.run_program(SUM, tests)
    assert [test.output for test in run.tests] == [b"%d\n" % (number + 1) for number in range(50)]
    seen = []
    run = sandbox.run_program(SUM, tests, lambda index, test: bool(seen.append(index)) or test.output == b"3\n")
    assert seen == [0, 1, 2] and len(run.tests) == 3


@pytest.fixture
def busy() -> Iterator[None]:
    """Two loops that want a processor each."""
    loops = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(2)]
    yield
    for loop in loops:
        loop.kill()
        loop.wait()


@pytest.mark.usefixtures("busy")
def test_limits_of_processor_time_are_fair_on_a_busy_machine(sandbox: Sandbox) -> None:
    source = "import time\nwhile time.process_time() < {}: pass\nprint('done')"
    limits = Limits(cpu_seconds=0.3)
    for seconds, status in ((0.2, Status.OK), (9, Status.TIME_LIMIT)):
        program = Program(language="python", source=source.format(seconds), limits=limits)
        test = sandbox.run_program(program, [b""]).tests[0]
        assert test.status is status and test.cpu_seconds < 4.5


def sums(sandbox: Sandbox, count: int, tests: int) -> list[list[bytes]]:
    """The outputs of that many programs, from six threads. Raises SandboxFailure where one was lost."""
    inputs = [b"%d 1" % number for number in range(tests)]
    with ThreadPoolExecutor(6) as threads:
        runs = threads.map(lambda _: sandbox.run_program(SUM, inputs), range(count))
        return [[test.output for test in run.tests] for run in runs]


def test_threads_share_the_slots(sandbox: Sandbox) -> None:
    assert sums(sandbox, 12, 2) == [[b"1\n", b"2\n"]] * 12


@pytest.mark.usefixtures("busy")
def test_a_busy_machine_loses_no_program() -> None:
    with Sandbox(slots=2) as sandbox:
        assert sums(sandbox, 12, 2) == [[b"1\n", b"2\n"]] * 12


def workers() -> list[int]:
    below = process_tree.descendants(os.getpid())
    return [pid for pid in below if b"sandbox.inside.box_worker" in command_line(pid)]


def command_line(pid: int) -> bytes:
    """Empty for a process that has ended: those of earlier tests may still be ending."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def test_a_lost_worker_is_replaced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(workers())
    with Sandbox(1, Tier.LANDLOCK) as sandbox:
        sandbox.run_program(SUM, [b"1 2"])
        kills = []

        def kill(index: int, test: TestRun) -> bool:
            if index == 0 and len(kills) < limit:
                kills.append(index)
                (worker,) = set(workers()) - before
                os.kill(worker, 9)
                time.sleep(0.1)
            return False

        limit = 1
        run = sandbox.run_program(SUM, [b"1 2", b"3 4"], kill)
        assert [test.output for test in run.tests] == [b"3\n", b"7\n"] and kills == [0]
        limit = 3
        with pytest.raises(SandboxFailure, match="the worker died"):
            sandbox.run_program(SUM, [b"1 2", b"3 4"], kill)
        assert sandbox.run_program(SUM, [b"1 2"]).tests[0].output == b"3\n"
    monkeypatch.setattr(slot, "WORKER", "cascade_rl.no_such_module")
    with Sandbox(1, Tier.LANDLOCK) as sandbox, pytest.raises(SandboxFailure):
        sandbox.run_program(SUM, [b"1 2"])


@pytest.mark.sandbox
def test_steps_down_without_bubblewrap_and_refuses_without_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    tier, reasons = strongest()
    assert tier is Tier.LANDLOCK and list(reasons) == [Tier.NAMESPACES, Tier.NAMESPACES_WITHOUT_PROC]
    assert "bwrap" in reasons[Tier.NAMESPACES]
    monkeypatch.setattr(slot, "WORKER", "cascade_rl.no_such_module")
    probe.cache_clear()
    with pytest.raises(SandboxUnavailable, match=r"(?s)untrusted code.*namespaces: .*landlock: .*Install bubblewrap"):
        probe()


def run(sandbox: Sandbox, workspace: Path, script: str, **limits: float) -> tuple[Status, int, str]:
    place = Folder(ThisNode(), workspace)
    found = sandbox.run_command(["sh", "-c", script], place, Limits(**limits), b"in", {"GIVEN": "1"})  # type: ignore[arg-type]
    return found.status, found.exit_code, found.output


def test_commands(sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "x")
    (tmp_path / "there").write_text("kept")
    script = 'cat there; cat; echo "$GIVEN$SECRET" >&2; echo new > made; exit 3'
    assert run(sandbox, tmp_path, script) == (Status.RUNTIME_ERROR, 3, "keptin1\n")
    assert (tmp_path / "made").read_text() == "new\n"
    assert run(sandbox, tmp_path, "kill -9 $$")[:2] == (Status.RUNTIME_ERROR, -9)
    place = Folder(ThisNode(), tmp_path)
    assert sandbox.run_command(["no-such-program"], place, Limits()).exit_code == 127
    (tmp_path / "test_it.py").write_text("import os\ndef test_it(tmp_path): (tmp_path / 'x').write_text('1')\n")
    pytest_run = sandbox.run_command([sys.executable, "-m", "pytest", "-q"], place, Limits())
    assert pytest_run.status is Status.OK and "1 passed" in pytest_run.output, pytest_run
    assert pytest_run.cpu_seconds > 0.05


def test_limits_of_commands(sandbox: Sandbox, tmp_path: Path) -> None:
    loop = "while :; do :; done"
    assert run(sandbox, tmp_path, f"(setsid sh -c '{loop}') & {loop}", cpu_seconds=0.4)[0] is Status.TIME_LIMIT
    assert run(sandbox, tmp_path, "sleep 600", cpu_seconds=0.1)[0] is Status.TIME_LIMIT
    assert run(sandbox, tmp_path, "yes")[0] is Status.OUTPUT_LIMIT
    assert run(sandbox, tmp_path, "sleep 600 & echo done") == (Status.OK, 0, "done\n")
    big = "python -c 'b = b\"x\" * (200 << 20); import time; time.sleep(600)'"
    assert run(sandbox, tmp_path, f"{big} & {big} & wait", memory_mib=300)[0] is Status.MEMORY_LIMIT
    assert run(sandbox, tmp_path, "head -c 9000000 /dev/full > big", file_mib=4)[0] is Status.RUNTIME_ERROR
    assert (tmp_path / "big").stat().st_size <= 4 << 20


CPP = """#include <bits/stdc++.h>
int deep(int n) { volatile char room[64]; room[0] = n; return n ? deep(n - 1) + room[0] * 0 : 7; }
int main() {
    std::string what; std::cin >> what;
    if (what == "sum") { int a, b; std::cin >> a >> b; std::cout << a + b; }
    if (what == "code") return 3;
    if (what == "loop") for (;;) {}
    if (what == "abort") abort();
    if (what == "memory") std::vector<char> v(1L << 40);
    if (what == "deep") std::cout << deep(500000);
}"""


def test_cpp(sandbox: Sandbox) -> None:
    program = Program(language="cpp", source=CPP, limits=Limits(cpu_seconds=0.2))
    inputs = [b"sum 1 2", b"code", b"loop", b"abort", b"memory", b"deep"]
    tests = sandbox.run_program(program, inputs).tests
    error = Status.RUNTIME_ERROR
    assert [run.status for run in tests] == [Status.OK, error, Status.TIME_LIMIT, error, Status.MEMORY_LIMIT, Status.OK]
    assert (tests[0].output, tests[1].exit_code, tests[3].exit_code, tests[5].output) == (b"3", 3, -6, b"7")


def test_cpp_compile_errors(sandbox: Sandbox) -> None:
    for source in (
        "int main( {",
        '#include "/etc/shadow"\nint main() {}',
        "template <int N> struct A { A<N + 1> a; }; A<0> a; int main() {}",
        "char a[3L << 30] = {1}; int main() {}",
    ):
        run = sandbox.run_program(Program(language="cpp", source=source), [b""])
        assert run.compile_error and "root:" not in run.compile_error, source


def test_cpp_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with Sandbox(1, Tier.LANDLOCK) as sandbox, pytest.raises(CompilerUnavailable, match="g\\+\\+"):
        sandbox.run_program(Program(language="cpp", source="int main() {}"), [b""])


def test_a_python_below_tmp_is_not_hidden_by_the_boxs_own_tmp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap, "_program", lambda: "bwrap")  # which need not be installed for this
    words = bubblewrap.command_line(Limits(), 3, proc=True, extra=["/tmp/clone/.venv"])
    mounts = list(itertools.pairwise(words))
    assert mounts.index(("--tmpfs", "/tmp")) < mounts.index(("--ro-bind", "/tmp/clone/.venv"))


@pytest.mark.parametrize("sent", [0, 1, -1])
def test_a_driver_whose_worker_is_gone_ends(sent: int) -> None:
    """However much of its own code had come: it may have lost, in this moment, what would kill it."""
    command, code = driver()
    ended = subprocess.run(command, input=code[:sent], capture_output=True, timeout=LIMIT_S, check=False)
    assert ended.returncode == 1 and ended.stderr == b"stdin ended\n"
