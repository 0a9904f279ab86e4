"""A child that has something to finish outlives its parent by a stated time, however it hangs."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

LIMIT_S = 60.0
CHILD = """
import os, signal, sys, time
from cascade_rl.engine.core.parent_death import die_with_parent, end_soon_after_parent, outlive_parent

die_with_parent()
end_soon_after_parent(float(sys.argv[1]))
outlive_parent()
print(os.getpid(), flush=True)
os.kill(os.getpid(), int(sys.argv[2]))
while not os.path.exists("go on"):
    time.sleep(0.01)
print("went on", flush=True)
"""
PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', *sys.argv[1:]])"


@pytest.mark.parametrize(
    ("seconds", "stopped", "told"), [(LIMIT_S, False, "went on\n"), (0.01, False, ""), (0.01, True, "")]
)
def test_a_child_has_its_time_and_no_more(tmp_path: Path, seconds: float, stopped: bool, told: str) -> None:
    how = [CHILD, str(seconds), str(int(signal.SIGSTOP if stopped else 0))]
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, *how], stdout=subprocess.PIPE, text=True, cwd=tmp_path
    ) as parent:
        assert parent.stdout
        child = Path(f"/proc/{int(parent.stdout.readline())}/stat")
        deadline = time.monotonic() + LIMIT_S
        while stopped and child.read_text().rpartition(") ")[2][0] != "T":
            assert time.monotonic() < deadline
            time.sleep(0.01)
        parent.kill()
        parent.wait()
        if told:
            os.close(os.open(tmp_path / "go on", os.O_CREAT))
        assert parent.stdout.read() == told  # ends when the child has ended
