"""The file `hash` of a stage folder, which records everything that determines the stage's weights.

    {"hash": ..., "older": [hash, ...], "settings": {...}, "data": {source: hash}, "parent": hash,
     "teachers": {stage: hash}, "files": {name: hash}}

Before schema 1 the file was a bare hash, which also covered defaults (`older_hash.py`). A folder that is claimed again
gets the hash of today. It keeps those of before as `older`, because other folders may depend on them.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from cascade_rl.rl_stages.run.durable_file import write_json
from cascade_rl.rl_stages.run.stage_graph import Identity

UNKNOWN = "unknown"  # the hash of a folder whose creation was interrupted


@dataclass(frozen=True)
class HashFile:
    """`identity` is None if the file has the older form or does not exist. `older` are hashes of the same weights."""

    hash: str
    identity: Identity | None = None
    older: tuple[str, ...] = ()

    @classmethod
    def read(cls, folder: Path) -> "HashFile":
        path = folder / "hash"
        text = path.read_text() if path.exists() else UNKNOWN
        if not text.startswith("{"):
            return cls(text)
        plain = json.loads(text)
        found, older = plain.pop("hash"), plain.pop("older") or ()
        return cls(found, Identity(**plain), (older,) if isinstance(older, str) else tuple(older))


def write_hash(folder: Path, identity: Identity, *, same_weights: bool = True) -> None:
    """Writes the hash of today. A folder with the `same_weights` as under its hash of before is still known by that."""
    before = HashFile.read(folder)
    known = dict.fromkeys((*before.older, before.hash) if same_weights else ())
    older = [name for name in known if name not in (UNKNOWN, identity.hash)]
    write_json(folder / "hash", {"hash": identity.hash, "older": older, **asdict(identity)})
