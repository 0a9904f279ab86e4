"""SIGKILL reaches every process below this one, once, when the sign is there."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cascade_rl.launchers.rehearse.killing import KilledOnce
from tests.until import LIMIT_S

GRANDCHILD = "import subprocess, sys; subprocess.run(['sleep', '600'])"


@pytest.mark.process
def test_all_descendants_are_killed_when_the_sign_appears(tmp_path: Path) -> None:
    sign = tmp_path / "step_00001"
    with KilledOnce(sign) as killed:
        child = subprocess.Popen([sys.executable, "-c", GRANDCHILD])
        assert not killed.done
        sign.mkdir()
        assert child.wait(timeout=LIMIT_S) == -signal.SIGKILL
        later = subprocess.Popen(["sleep", "0.2"])
        assert later.wait(timeout=LIMIT_S) == 0
    assert killed.done


def test_without_the_sign_nothing_is_killed(tmp_path: Path) -> None:
    with KilledOnce(tmp_path / "step_00001") as killed:
        pass
    assert not killed.done
