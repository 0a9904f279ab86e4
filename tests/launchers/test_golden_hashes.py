"""The hashes of the shipped launchers' stages: finished runs of them are kept as long as these stay what they are."""

import importlib
import json
import os
from pathlib import Path

import pytest

from cascade_rl.rl_stages.run.stage_graph import content_hashes

GOLDEN = Path(__file__).with_name("golden_hashes.json")
LAUNCHERS = (
    *("cascade1_14b", "cascade1_8b", "cascade1_8b_thinking", "cascade2_30b_a3b", "cascade2_short"),
    *("cascade2_tiny", "if_rl_smollm2"),
)
CHANGED = """
Stages of launchers/{launcher}.py have other hashes: {stages}. Whoever has run them will be asked to train them again.

If nothing was to change, a key was renamed or retired: add that to rl_stages/config/schema.py under a new number, as
docs/adding_a_stage.md says, and the hashes are the old ones again.
If these stages are to be trained otherwise from now on, write the new hashes: UPDATE_GOLDEN=1 pytest {test}
"""


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_hashes_stay(launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where no data are: their names are hashed
    hashes = content_hashes(importlib.import_module(f"cascade_rl.launchers.{launcher}").CASCADE)
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if os.environ.get("UPDATE_GOLDEN") == "1":
        GOLDEN.write_text(json.dumps(golden | {launcher: hashes}, indent=2, sort_keys=True) + "\n")
        return
    changed = [name for name in hashes | golden[launcher] if hashes.get(name) != golden[launcher].get(name)]
    assert not changed, CHANGED.format(launcher=launcher, stages=", ".join(changed), test=Path(__file__).name)


def test_every_launcher_is_here() -> None:
    folder = Path(str(importlib.import_module("cascade_rl.launchers.cli.launch").__file__)).parents[1]
    shipped = [path.stem for path in folder.glob("*.py") if "\n    launch(CASCADE)\n" in path.read_text()]
    assert sorted(shipped) == sorted(LAUNCHERS)
