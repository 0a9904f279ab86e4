"""The hashes under which earlier launches knew the stages of today: a folder with one of them has their weights.

A hash changes with a setting that no weight depends on, or with a new version that looks at more. What depends on the
stage may still name the hash of before, so a folder keeps it (`HashFile.older`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cascade_rl.rl_stages.config.base import BASE
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.stage import Stage
from cascade_rl.rl_stages.run.stage_graph import Identity, base_hash
from cascade_rl.rl_stages.run.upgrade.hash_file import UNKNOWN, HashFile
from cascade_rl.rl_stages.run.upgrade.older_hash import has_older_hash, older_base_hash
from cascade_rl.rl_stages.run.upgrade.placed_folder import newest_step
from cascade_rl.rl_stages.run.upgrade.same_weights import STOP_RULES, Names, free_keys, same_inputs, same_settings


def known_as(cascade: Cascade, identities: Mapping[str, Identity], folders: Iterable[Path]) -> Names:
    """By stage, and for the base: the hashes that mean its weights of today."""
    files = {folder: HashFile.read(folder) for folder in folders}
    names = {BASE: {base_hash(cascade), older_base_hash(cascade)}}
    for stage in cascade.stages:
        today = Today(cascade, stage, identities[stage.name], names)
        own = [file for folder, file in files.items() if today.stands_in(folder, file)]
        names[stage.name] = {today.identity.hash, *(name for file in own for name in (file.hash, *file.older))}
    return names


def parent_name(cascade: Cascade, stage: Stage) -> str:
    """The stage whose weights it starts from, or the base."""
    parent = cascade.parent(stage)
    return parent.name if parent else BASE


@dataclass(frozen=True)
class Today:
    """A stage of today. `names` has those of the stages before it."""

    cascade: Cascade
    stage: Stage
    identity: Identity
    names: Names

    def stands_in(self, folder: Path, file: HashFile) -> bool:
        """Whether the folder has the stage's weights, as far as it came."""
        if file.hash == self.identity.hash:
            return True
        if file.identity is None:
            older = (self.cascade, self.stage, self.identity, parent_name(self.cascade, self.stage), self.names)
            return file.hash != UNKNOWN and has_older_hash(file, folder, *older)
        beside = free_keys(self.stage) | (STOP_RULES if self._whole(folder) else set())
        pair, parent = (file.identity, self.identity), parent_name(self.cascade, self.stage)
        return same_settings(*pair, beside) and same_inputs(*pair, parent, self.names)

    def _whole(self, folder: Path) -> bool:
        """Whether the folder is finished, and no rule has ended it early."""
        return (folder / "done").exists() and newest_step(folder) == self.stage.steps
