"""Why a stage must run again: what of its settings, data, files, parent, teachers and judges is not what it was."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cascade_rl.engine.core.settings import ParallelConfig, RolloutConfig
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.mopd_stage import MopdStage
from cascade_rl.rl_stages.config.stage import Stage
from cascade_rl.rl_stages.config.text import changes
from cascade_rl.rl_stages.run.stage_graph import OF_THE_LAYOUT, Identity, dependencies
from cascade_rl.rl_stages.run.upgrade.hash_file import HashFile
from cascade_rl.rl_stages.run.upgrade.known_as import parent_name
from cascade_rl.rl_stages.run.upgrade.placed_folder import stage_name
from cascade_rl.rl_stages.run.upgrade.recorded import changed_settings
from cascade_rl.rl_stages.run.upgrade.same_weights import Names, free_keys

KEYS_SHOWN = 5
DATA_OR_DTYPES = "its data, or the dtype of its trainer or engines"  # what an older hash does not tell apart


@dataclass(frozen=True)
class Reasons:
    """`kept` are the folders of the stages that have not changed. For the others see `KeptFolders` and `known_as`."""

    cascade: Cascade
    identities: Mapping[str, Identity]
    roots: Mapping[str, Path]
    names: Names
    kept: Collection[Path]

    def of(self, folder: Path) -> Iterator[str]:
        """Those of the stage that is at the place of the folder."""
        name = stage_name(folder.name)
        if name not in self.roots:
            yield "the cascade has no such stage"
            return
        stage, identity = self.cascade.stage(name), HashFile.read(folder).identity
        keys = shown(changed_settings(folder, stage, free_keys(stage)))
        yield from keys
        if identity:
            yield from self._beside_its_keys(stage, identity)
        else:
            yield from self._beside_its_older_keys(stage) or (() if keys else [DATA_OR_DTYPES])

    def _beside_its_keys(self, stage: Stage, old: Identity) -> Iterator[str]:
        new, parent = self.identities[stage.name], parent_name(self.cascade, stage)
        yield from (f"{key} {was} -> {now}" for key, (was, now) in changes(_of_the_layout(old), _of_the_layout(new)))
        yield from (f"its data {source}" for source in new.data if old.data.get(source) != new.data[source])
        if old.files:
            yield from (f"the content of {name}" for name, _ in changes(old.files, new.files))
        models = {parent: old.parent, **old.teachers}
        for name in dict.fromkeys((parent, *old.teachers, *new.teachers)):
            if models.get(name) not in self.names.get(name, ()):
                yield self._depends_on(stage, name)

    def _beside_its_older_keys(self, stage: Stage) -> list[str]:
        changed = [other.name for other in dependencies(self.cascade, stage) if self.roots[other.name] not in self.kept]
        return [self._depends_on(stage, name) for name in changed]

    def _depends_on(self, stage: Stage, name: str) -> str:
        judge = "teacher" if isinstance(stage, MopdStage) else "judge"
        role = "parent" if name == parent_name(self.cascade, stage) else judge
        return f"its {role} {self.roots[name].name if name in self.roots else name}"


def _of_the_layout(identity: Identity) -> dict[str, Any]:
    """The keys of a stage's layout that its weights depend on, each with its value."""
    usual = {"rollout": RolloutConfig(), "parallel": ParallelConfig()}
    return {
        f"{node}.{name}": identity.settings.get(node, {}).get(name, getattr(usual[node], name))
        for node, names in OF_THE_LAYOUT.items()
        for name in names
    }


def shown(found: Sequence[tuple[str, tuple[object, object]]]) -> list[str]:
    """Keys with their old and new values, the first ones of many."""
    keys = [f"{key} {old} -> {new}" for key, (old, new) in found]
    more = [f"and {len(keys) - KEYS_SHOWN} more keys"] if len(keys) > KEYS_SHOWN else []
    return [*keys[:KEYS_SHOWN], *more]
