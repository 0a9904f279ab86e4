"""The stage folders of earlier launches: which of them the cascade still describes, and what changed in the others.

Guarantees: Nothing is deleted. If a kill interrupts the moves, the next claim finishes them from what is on disk.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.settings import ParallelConfig, RolloutConfig
from cascade_rl.rl_stages.config.base import BASE
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.mopd_stage import MopdStage
from cascade_rl.rl_stages.config.stage import Stage
from cascade_rl.rl_stages.config.text import changes
from cascade_rl.rl_stages.run.stage_graph import OF_THE_LAYOUT, Identity, dependencies
from cascade_rl.rl_stages.run.upgrade.hash_file import HashFile
from cascade_rl.rl_stages.run.upgrade.older_hash import older_hashes
from cascade_rl.rl_stages.run.upgrade.recorded import changed_settings

KEYS_SHOWN = 5
DATA_OR_DTYPES = "its data, or the dtype of its trainer or engines"  # what an older hash does not tell apart


@dataclass(frozen=True)
class SetAside:
    """A stage folder with work in it that a claim moves to superseded/.

    label     name of the folder, such as 02_if_rl
    progress  "done", or "at step N" of its newest checkpoint
    reasons   what changed
    again     whether the work must be done again, because superseded/ has no finished folder to take its place
    """

    label: str
    progress: str
    reasons: Sequence[str]
    again: bool

    @property
    def stage(self) -> str:
        return _stage_name(self.label)

    def __str__(self) -> str:
        return f"{self.label} ({self.progress}): {'; '.join(self.reasons)}"


Agree = Callable[[Sequence[SetAside]], None]


def refuse(aside: Sequence[SetAside]) -> None:
    """Raises UserError if work would have to be done again."""
    if again := [item for item in aside if item.again]:
        listed, names = "\n".join(f"  {item}" for item in again), ",".join(item.stage for item in again)
        raise UserError(
            f"expected the stages that have run to be what they were, found changes:\n{listed}\n"
            f"Nothing was moved. Take the changes back, or agree with --rerun {names}: these stages then run again, "
            "and their folders are kept under superseded/."
        )


@dataclass(frozen=True)
class KeptFolders:
    """The folders under stages/ and superseded/ of the run folder `root`. `roots` has each stage's folder by name."""

    root: Path
    cascade: Cascade
    identities: Mapping[str, Identity]
    roots: Mapping[str, Path]

    def set_aside(self) -> list[SetAside]:
        """The folders with work in them that `move` sets aside."""
        changed = [folder for folder in self._placed if self._hashes[folder] not in self._wanted]
        return [
            SetAside(folder.name, progress, tuple(self._reasons(folder)), self._again(folder))
            for folder in changed
            if (progress := _progress(folder))
        ]

    def move(self) -> None:
        """Sets aside the folders of stages that have changed, and takes back the folders that match again."""
        for folder in self._placed:
            if self._wanted.get(self._hashes[folder]) != folder:
                (self.root / "superseded").mkdir(exist_ok=True)
                folder.rename(_free(self.root / "superseded" / f"{folder.name}-{HashFile.read(folder).hash[:8]}"))
        replace(self)._take_back()  # a copy without cached properties, which reads the disk again

    def _take_back(self) -> None:
        for folder in self._superseded:
            root = self._wanted.get(self._hashes[folder])
            if root and not root.exists():
                root.parent.mkdir(exist_ok=True)
                folder.rename(root)

    @cached_property
    def _placed(self) -> list[Path]:
        return sorted((self.root / "stages").glob("*"))

    @cached_property
    def _superseded(self) -> list[Path]:
        return sorted((self.root / "superseded").glob("*"))

    @cached_property
    def _wanted(self) -> dict[str, Path]:
        return {identity.hash: self.roots[name] for name, identity in self.identities.items()}

    @cached_property
    def _older(self) -> dict[str, str]:
        return older_hashes(self.cascade, self.identities, [*self._placed, *self._superseded])

    @cached_property
    def _hashes(self) -> dict[Path, str]:
        """The hash of each folder. An older hash that still matches a stage is replaced by its hash of today."""
        todays = {older: self.identities[name].hash for name, older in self._older.items() if name != BASE}
        files = {folder: HashFile.read(folder) for folder in (*self._placed, *self._superseded)}
        return {folder: todays.get(file.hash, file.hash) for folder, file in files.items()}

    def _again(self, folder: Path) -> bool:
        wanted = self.identities.get(_stage_name(folder.name))
        finished = {self._hashes[other] for other in self._superseded if (other / "done").exists()}
        return wanted is None or wanted.hash not in finished

    def _reasons(self, folder: Path) -> Iterator[str]:
        name = _stage_name(folder.name)
        if name not in self.roots:
            yield "the cascade has no such stage"
            return
        stage, identity = self.cascade.stage(name), HashFile.read(folder).identity
        keys = [f"{key} {old} -> {new}" for key, (old, new) in changed_settings(folder, stage)]
        yield from keys[:KEYS_SHOWN]
        if len(keys) > KEYS_SHOWN:
            yield f"and {len(keys) - KEYS_SHOWN} more keys"
        if identity:
            yield from self._beside_its_keys(stage, identity)
        else:
            yield from self._beside_its_older_keys(stage) or (() if keys else [DATA_OR_DTYPES])

    def _beside_its_keys(self, stage: Stage, old: Identity) -> Iterator[str]:
        new = self.identities[stage.name]
        yield from (f"{key} {was} -> {now}" for key, (was, now) in changes(_of_the_layout(old), _of_the_layout(new)))
        yield from (f"its data {source}" for source in new.data if old.data.get(source) != new.data[source])
        if old.parent != new.parent:
            parent = self.cascade.parent(stage)
            yield self._depends_on(stage, parent.name if parent else BASE)
        yield from (self._depends_on(stage, name) for name, _ in changes(old.teachers, new.teachers))

    def _beside_its_older_keys(self, stage: Stage) -> list[str]:
        changed = [other.name for other in dependencies(self.cascade, stage) if other.name not in self._older]
        return [self._depends_on(stage, name) for name in changed]

    def _depends_on(self, stage: Stage, name: str) -> str:
        parent = self.cascade.parent(stage)
        judge = "teacher" if isinstance(stage, MopdStage) else "judge"
        role = "parent" if name == (parent.name if parent else BASE) else judge
        return f"its {role} {self.roots[name].name if name in self.roots else name}"


def _of_the_layout(identity: Identity) -> dict[str, Any]:
    """The keys of a stage's layout that its weights depend on, each with its value."""
    usual = {"rollout": RolloutConfig(), "parallel": ParallelConfig()}
    return {
        f"{node}.{name}": identity.settings.get(node, {}).get(name, getattr(usual[node], name))
        for node, names in OF_THE_LAYOUT.items()
        for name in names
    }


def _stage_name(label: str) -> str:
    return label.partition("_")[2]


def _progress(folder: Path) -> str:
    """The progress of a stage folder. Empty if there is no work in it."""
    if (folder / "done").exists():
        return "done"
    steps = [int(path.name.removeprefix("step_")) for path in (folder / "checkpoints").glob("step_*[0-9]")]
    return f"at step {max(steps)}" if steps else ""


def _free(path: Path) -> Path:
    """`path`, or the first of path.2, path.3, ... that is not taken."""
    names = (path.with_name(f"{path.name}.{count}") for count in itertools.count(2))
    return path if not path.exists() else next(name for name in names if not name.exists())
