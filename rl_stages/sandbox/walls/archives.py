"""What archives hold, by the names of what is in them: a package may lie in the wheel of another, as in pip's."""

from __future__ import annotations

import os
import tarfile
import zipfile
import zlib
from collections.abc import Iterable
from lzma import LZMAError

ZIPS = (".whl", ".egg", ".zip", ".pyz", ".pex")
OTHERS = (
    *(".conda", ".deb", ".rpm"),
    *(".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst"),
)
SHORT_BYTES = 1 << 20  # of an archive that must be read whole to be listed


def parts(path: str) -> set[str] | None:
    """The names of all folders and files in an archive; None if it cannot be listed, or not in a short time."""
    try:
        members = _members(path)
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, tarfile.TarError, zlib.error, LZMAError):
        return None
    found = {part for member in members for part in member.split("/")}
    return None if any(part.endswith((*ZIPS, *OTHERS)) for part in found) else found


def _members(path: str) -> Iterable[str]:
    """Raises ValueError if it takes long."""
    if path.endswith(ZIPS):
        with zipfile.ZipFile(path) as zipped:
            return zipped.namelist()
    if os.stat(path).st_size > SHORT_BYTES:
        raise ValueError(f"{path} is too long to be listed")
    with tarfile.open(path) as tar:
        return tar.getnames()
