"""A stage whose settings and environment hold secrets, and a tracked run of it in two attempts."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.text import override
from cascade_rl.rl_stages.run.run_folder import RunFolder
from cascade_rl.rl_stages.run.trackers.tracker import Subject, Tracker
from tests.rl_stages.tiny_cascade import CASCADE

SECRET = "hunter2"
JUDGE = ("kind=server", "model=judge", f"url=http://me:{SECRET}@127.0.0.1:9/v1", f"api_key_env={SECRET}_KEY")


def secret_cascade() -> Cascade:
    return override(CASCADE, [f"math_rl.reward_model.{setting}" for setting in JUDGE])


def subject(root: Path, monkeypatch: pytest.MonkeyPatch) -> Subject:
    monkeypatch.setenv("JUDGE_API_KEY", SECRET)
    monkeypatch.setattr("sys.argv", ["nemo-run", f"key={SECRET}"])
    with RunFolder.claim(root / "tiny", secret_cascade()) as (run, _):
        return Subject.of(run.cascade, run.stage("math_rl"))


def two_attempts(make: Callable[[str | None], Tracker]) -> str | None:
    """Steps 1 and 2, then a failure; then step 3. Returns the id."""
    first = make(None)
    first.log(0, {"heldout/math": 0.25})
    for step in (1, 2):
        first.log(step, {"reward": step / 4})
    first.close(failed=True)
    again = make(first.id)
    again.log(3, {"reward": 0.75})
    again.close(failed=False)
    assert again.id == first.id
    return first.id


def holds(folder: Path, text: str) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]
