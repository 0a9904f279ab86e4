"""The stage folders of earlier launches: which of them the cascade still describes, and what changed in the others.

Guarantees: Nothing is deleted. If a kill interrupts the moves, the next claim finishes them from what is on disk.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.stage import Stage
from cascade_rl.rl_stages.run.durable_file import read_json, write_json
from cascade_rl.rl_stages.run.stage_graph import Identity
from cascade_rl.rl_stages.run.upgrade.hash_file import HashFile, write_hash
from cascade_rl.rl_stages.run.upgrade.known_as import known_as, parent_name
from cascade_rl.rl_stages.run.upgrade.placed_folder import newest_step, progress_of, stage_name
from cascade_rl.rl_stages.run.upgrade.reasons import Reasons, shown
from cascade_rl.rl_stages.run.upgrade.recorded import changed_settings
from cascade_rl.rl_stages.run.upgrade.same_weights import (
    OF_THE_END,
    STOP_RULES,
    Names,
    can_end_elsewhere,
    free_keys,
    same_inputs,
    same_settings,
    until,
)

Fate = Literal["goes on", "runs again", "is taken back"]
"""The folder stays and goes on from its newest checkpoint; or it is set aside, and its stage runs again, or a finished
folder under superseded/ takes its place."""


@dataclass(frozen=True)
class Changed:
    """A stage folder with work in it whose settings, data or parent are no longer those of its last launch.

    label     name of the folder, such as 02_if_rl
    progress  "done", or "at step N" of its newest checkpoint
    reasons   what changed
    """

    label: str
    progress: str
    reasons: Sequence[str]
    fate: Fate

    @property
    def stage(self) -> str:
        return stage_name(self.label)

    def __str__(self) -> str:
        return f"{self.label} ({self.progress}): {'; '.join(self.reasons)}"


Agree = Callable[[Sequence[Changed]], None]


def refuse(changed: Sequence[Changed]) -> None:
    """Raises UserError if work would have to be done again."""
    if again := [item for item in changed if item.fate == "runs again"]:
        listed, names = "\n".join(f"  {item}" for item in again), ",".join(item.stage for item in again)
        raise UserError(
            f"expected the stages that have run to be what they were, found changes:\n{listed}\n"
            f"Nothing was moved. Take the changes back, or agree with --rerun {names}: these stages then run again "
            "from step 0, and their folders are kept under superseded/."
        )


@dataclass(frozen=True)
class KeptFolders:
    """The folders under stages/ and superseded/ of the run folder `root`. `roots` has each stage's folder by name."""

    root: Path
    cascade: Cascade
    identities: Mapping[str, Identity]
    roots: Mapping[str, Path]

    def changed(self) -> list[Changed]:
        """The folders with work in them that `move` sets aside, or that go on with other settings."""
        return [item for folder in self._placed if progress_of(folder) and (item := self._changed(folder))]

    def move(self) -> None:
        """Sets aside the folders of stages that have changed, and takes back the folders that match again."""
        for folder in self._placed:
            if self._only_ends_elsewhere(folder):
                self._reopen(folder)
            elif self._wanted.get(self._hashes[folder]) != folder:
                (self.root / "superseded").mkdir(exist_ok=True)
                folder.rename(_free(self.root / "superseded" / f"{folder.name}-{HashFile.read(folder).hash[:8]}"))
        replace(self)._take_back()  # a copy without cached properties, which reads the disk again

    def _changed(self, folder: Path) -> Changed | None:
        if self._hashes[folder] not in self._wanted and not self._only_ends_elsewhere(folder):
            fate: Fate = "runs again" if self._again(folder) else "is taken back"
            return Changed(folder.name, progress_of(folder), tuple(self._reasons.of(folder)), fate)
        finished = (folder / "done").exists() and not self._only_ends_elsewhere(folder)
        keys = [] if finished else shown(changed_settings(folder, self._stage(folder)))
        return Changed(folder.name, progress_of(folder), keys, "goes on") if keys else None

    def _only_ends_elsewhere(self, folder: Path) -> bool:
        """Whether the steps of the folder are those of its stage, which has another end than the folder's."""
        name, old = stage_name(folder.name), HashFile.read(folder).identity
        if self._hashes[folder] in self._wanted or self.roots.get(name) != folder or old is None:
            return False
        stage, new, step = self.cascade.stage(name), self.identities[name], newest_step(folder)
        beside = free_keys(stage) | OF_THE_END if can_end_elsewhere(stage) else free_keys(stage) | STOP_RULES
        return (
            step <= stage.steps
            and not self._came_further(new.hash, step)
            and same_settings(until(step, old), until(step, new), beside)
            and same_inputs(old, new, parent_name(self.cascade, stage), self._names)
        )

    def _reopen(self, folder: Path) -> None:
        """Gives the folder the hash of its stage. If it was done, it is so no longer."""
        (folder / "done").unlink(missing_ok=True)
        if (scores := folder / "scores.json").exists():
            write_json(scores, {when: own for when, own in read_json(scores).items() if when != "after"})
        write_hash(folder, self.identities[stage_name(folder.name)], same_weights=False)

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

    @property
    def _reasons(self) -> Reasons:
        kept = [self._wanted[own] for folder in self._placed if (own := self._hashes[folder]) in self._wanted]
        return Reasons(self.cascade, self.identities, self.roots, self._names, kept)

    @cached_property
    def _names(self) -> Names:
        return known_as(self.cascade, self.identities, [*self._placed, *self._superseded])

    @cached_property
    def _hashes(self) -> dict[Path, str]:
        """The hash of each folder. One that today's weights of a stage are known as is replaced by that of today."""
        todays = {known: own.hash for name, own in self.identities.items() for known in self._names[name]}
        found = {folder: HashFile.read(folder).hash for folder in (*self._placed, *self._superseded)}
        return {folder: todays.get(own, own) for folder, own in found.items()}

    def _stage(self, folder: Path) -> Stage:
        """The stage whose weights the folder has, or whose place."""
        places = {root: name for name, root in self.roots.items()}
        return self.cascade.stage(places[self._wanted.get(self._hashes[folder], folder)])

    def _again(self, folder: Path) -> bool:
        wanted = self.identities.get(stage_name(folder.name))
        finished = {self._hashes[other] for other in self._superseded if (other / "done").exists()}
        return wanted is None or wanted.hash not in finished

    def _came_further(self, wanted: str, step: int) -> bool:
        """Whether a folder that was set aside has the wanted hash and more steps, or is finished."""
        own = [other for other in self._superseded if self._hashes[other] == wanted]
        return any((other / "done").exists() or newest_step(other) > step for other in own)


def _free(path: Path) -> Path:
    """`path`, or the first of path.2, path.3, ... that is not taken."""
    names = (path.with_name(f"{path.name}.{count}") for count in itertools.count(2))
    return path if not path.exists() else next(name for name in names if not name.exists())
