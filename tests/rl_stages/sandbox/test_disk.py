"""Folders that untrusted code has filled."""

import os
from pathlib import Path

import pytest

from cascade_rl.rl_stages.sandbox.disk import Held, Overfull, held, remove

MOST = Held(1 << 20, 50)


def nested(folder: Path, depth: int) -> None:
    """A folder so deep that its path is too long for a call."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)


def test_files_folders_and_links_count(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/f").write_bytes(b"x" * 10_000)
    (tmp_path / "out").symlink_to("/usr")
    found = held([tmp_path, tmp_path / "missing"], MOST)
    assert found.entries == 4 and 10_000 < found.bytes < 100_000


@pytest.mark.parametrize(("files", "size", "depth"), [(51, 0, 0), (1, 2 << 20, 0), (0, 0, 200)])
def test_too_much_is_refused(tmp_path: Path, files: int, size: int, depth: int) -> None:
    for number in range(files):
        (tmp_path / str(number)).write_bytes(b"x" * size)
    nested(tmp_path, depth)
    with pytest.raises(Overfull):
        held([tmp_path], Held(1 << 20, 50) if depth == 0 else Held(1 << 40, 1 << 40))


@pytest.mark.process
def test_a_folder_is_removed_whatever_its_depth_and_modes(tmp_path: Path) -> None:
    folder = tmp_path / "workspace"
    (folder / "a/b").mkdir(parents=True)
    nested(folder, 3000)
    for closed in ("a/b", "a", "."):
        (folder / closed).chmod(0)
    remove(folder)
    assert not folder.exists()
