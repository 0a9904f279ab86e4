"""Both console scripts say the one version, that of setup.py."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("command", [("nemo-run",), ("cascade",), ("cascade", "run")])
def test_version(command: tuple[str, ...]) -> None:
    script = Path(sys.executable).with_name(command[0])
    told = subprocess.run([script, *command[1:], "--version"], capture_output=True, text=True)
    (version,) = re.findall(r'version="([\d.]+)"', (ROOT / "setup.py").read_text())
    assert (told.returncode, told.stdout) == (0, f"cascade-rl {version}\n")
