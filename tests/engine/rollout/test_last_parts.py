"""What engines leave is there once, whole, for the attempt after theirs."""

import pickle
from pathlib import Path

import pytest

from cascade_rl.engine.core.rollouts import Request, Sampling
from cascade_rl.engine.rollout import last_parts
from cascade_rl.engine.rollout.last_parts import leave, left, new_folder

DRAWN = [(Request(name, (5,), Sampling(4), 0), []) for name in "ab"]


def found(folder: Path) -> list[object]:
    with left(folder) as parts:
        return parts


def test_the_next_attempt_has_it_once_and_whatever_comes_later_is_dropped(tmp_path: Path) -> None:
    assert found(tmp_path / "none") == []
    first = new_folder(tmp_path)
    leave(first, DRAWN)
    (first / "host-1.unfinished").write_bytes(pickle.dumps(DRAWN)[:-9])
    second = new_folder(tmp_path)
    assert found(tmp_path) == DRAWN
    assert list(tmp_path.iterdir()) == []
    leave(second, DRAWN)
    assert found(tmp_path) == []


def test_what_was_not_taken_is_there_still(tmp_path: Path) -> None:
    leave(new_folder(tmp_path), DRAWN)
    with pytest.raises(OSError, match="full"), left(tmp_path):
        raise OSError("full")
    assert found(tmp_path) == DRAWN


def test_a_disk_that_fails_leaves_no_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError("full")

    monkeypatch.setattr(last_parts.os, "fsync", full)
    with pytest.raises(OSError, match="full"):
        leave(new_folder(tmp_path), DRAWN)
    assert found(tmp_path) == []
