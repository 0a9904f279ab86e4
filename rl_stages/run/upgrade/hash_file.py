"""The file `hash` of a stage folder, which records everything that determines the stage's weights.

    {"hash": ..., "settings": {...}, "data": {source: hash}, "parent": hash, "teachers": {stage: hash}}

Before schema 1 the file was a bare hash, which also covered defaults (`older_hash.py`). A folder that is claimed again
gets the new form. It keeps the bare hash as `older`, because folders under superseded/ may depend on it.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from cascade_rl.rl_stages.run.durable_file import write_json
from cascade_rl.rl_stages.run.stage_graph import Identity

UNKNOWN = "unknown"  # the hash of a folder whose creation was interrupted


@dataclass(frozen=True)
class HashFile:
    """`identity` is None if the file has the older form or does not exist."""

    hash: str
    identity: Identity | None = None
    older: str | None = None

    @classmethod
    def read(cls, folder: Path) -> "HashFile":
        path = folder / "hash"
        text = path.read_text() if path.exists() else UNKNOWN
        if not text.startswith("{"):
            return cls(text, older=None if text == UNKNOWN else text)
        plain = json.loads(text)
        found, older = plain.pop("hash"), plain.pop("older")
        return cls(found, Identity(**plain), older)


def write_hash(folder: Path, identity: Identity) -> None:
    write_json(folder / "hash", {"hash": identity.hash, "older": HashFile.read(folder).older, **asdict(identity)})
