"""Folders that untrusted code has filled."""

import ctypes
import mmap
import os
from pathlib import Path

import pytest

from cascade_rl.rl_stages.sandbox.disk import Held, Overfull, held, nameless, remove

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


def test_files_without_a_name_count_while_they_are_open_or_only_mapped(tmp_path: Path) -> None:
    most, before = 1 << 20, nameless([os.getpid()], 1 << 20)
    file = (tmp_path / "f").open("w+b", buffering=0)
    file.write(b"x" * 10_000)
    assert nameless([os.getpid()], most) == before
    os.unlink(file.name)
    assert 10_000 <= nameless([os.getpid()], most) - before < 100_000
    descriptor = os.dup(file.fileno())
    address = ctypes.CDLL(None).mmap
    address.restype = ctypes.c_void_p
    place = address(None, 4096, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)  # `mmap.mmap` keeps a descriptor
    os.close(descriptor)
    file.close()
    assert nameless([os.getpid()], most) - before == most
    ctypes.CDLL(None).munmap(ctypes.c_void_p(place), 4096)
    assert nameless([os.getpid(), 1 << 22], most) == before


@pytest.mark.process
def test_a_folder_is_removed_whatever_its_depth_and_modes(tmp_path: Path) -> None:
    folder = tmp_path / "workspace"
    (folder / "a/b").mkdir(parents=True)
    nested(folder, 3000)
    for closed in ("a/b", "a", "."):
        (folder / closed).chmod(0)
    remove(folder)
    assert not folder.exists()
