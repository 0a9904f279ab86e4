"""From the repository's root, `import kernels` finds nothing of ours: transformers looks for another package there."""

import re
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from multiprocessing import Pipe
from pathlib import Path

import pytest

from cascade_rl.engine.rollout import server_process
from cascade_rl.engine.rollout.protocol import StartServer
from cascade_rl.launchers.local.run_local import Ranks
from cascade_rl.rl_stages.rewards.deadline_worker import Worker
from cascade_rl.rl_stages.rewards.reward_models.bradley_terry import scorer

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
# In the place of what a process runs. A worker has to say that it is ready.
STAND_IN = """
import os
from importlib.util import find_spec
with open(os.environ["FOUND"], "a") as file:
    print(os.getcwd(), find_spec("kernels"), file=file)
print("ready", flush=True)
"""

pytestmark = pytest.mark.process


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the stand-in writes what it finds, started in the root by somebody who has no PYTHONSAFEPATH."""
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("FOUND", str(tmp_path / "found"))
    monkeypatch.delenv("PYTHONSAFEPATH")
    monkeypatch.chdir(ROOT)
    return tmp_path / "found"


def engine(folder: Path, _: pytest.MonkeyPatch) -> None:
    server = server_process.launch_server(Pipe()[0], StartServer(range(1), folder / "log", "stand_in"))
    assert server_process.end_server(server, 60) == 0


def ranks(folder: Path, _: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-m", "stand_in"]
    with (folder / "lock").open("w") as lock, Ranks(command, 1, folder, lock.fileno()) as started:
        assert started.wait() is None


def worker(_: Path, __: pytest.MonkeyPatch) -> None:
    Worker([sys.executable, "-m", "stand_in"]).kill()


def reward_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scorer, "SERVER", "stand_in")
    with pytest.raises(scorer.ScorerDied):
        scorer.BradleyTerryScorer(folder, "float32", folder / "log")


@pytest.mark.parametrize("start", [engine, ranks, worker, reward_model])
def test_a_process_that_is_started(
    start: Callable[..., None], found: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(tmp_path, monkeypatch)
    assert found.read_text() == f"{ROOT} None\n"


@pytest.mark.parametrize("command", [("nemo-run",), ("cascade", "run")])
def test_a_console_script(command: tuple[str, ...], found: Path, tmp_path: Path) -> None:
    subprocess.run([BIN / command[0], *command[1:], tmp_path / "stand_in.py"], capture_output=True)
    assert found.read_text() == f"{ROOT} None\n"


def test_the_stand_in_would_find_it(found: Path) -> None:
    subprocess.run([sys.executable, "-m", "stand_in"], capture_output=True, check=True)
    assert str(ROOT / "kernels") in found.read_text()


def test_pytest() -> None:
    assert find_spec("kernels") is None


def test_checkers_search_the_tree_of_links() -> None:
    """mypy and import-linter put the folder where they are started on the path."""
    commands = subprocess.run(["make", "-n", "lint"], cwd=ROOT, capture_output=True, text=True).stdout.splitlines()
    checkers = [command for command in commands if re.search(r"/bin/(mypy|lint-imports)\b", command)]
    assert [command.partition(" && ")[0] for command in checkers] == ["cd .venv/packages"] * 2
    folder = ROOT / ".venv/packages"
    assert [path.name for path in folder.iterdir() if not path.name.startswith(".")] == ["cascade_rl"]
