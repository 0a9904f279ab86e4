"""The hash of stages before schema 1, which covered every key with its value. It identifies run folders of that time.

It is computed from the stage.yaml of a folder, which has the keys of its time, and from today's data. If it equals the
recorded hash, neither data nor parent nor teachers have changed. The settings are compared key by key.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cascade_rl.rl_stages.config.base import BASE
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.stage import Stage
from cascade_rl.rl_stages.config.text import read_yaml, to_plain
from cascade_rl.rl_stages.run.stage_graph import Identity, digest, sources, teacher_stages
from cascade_rl.rl_stages.run.upgrade.hash_file import HashFile
from cascade_rl.rl_stages.run.upgrade.recorded import changed_settings

# As they were when this hash was in use.
BASE_KEYS = ("hf", "hf_config", "published")
LEFT_OUT = ("parent", "gate", "nproc", "parallel", "rollout", "checkpoint_every", "keep_checkpoints")


def older_hashes(cascade: Cascade, identities: Mapping[str, Identity], folders: Iterable[Path]) -> dict[str, str]:
    """The older hash of the base, and of each stage that one of the folders still matches."""
    files = {folder: HashFile.read(folder) for folder in folders}
    older = {BASE: digest([{key: to_plain(getattr(cascade.base, key)) for key in BASE_KEYS}, cascade.seed])}
    for stage in cascade.stages:
        identity = identities[stage.name]
        beside = _beside_settings(cascade, stage, identity, older)
        for folder, file in files.items():
            if file.older and (file.hash == identity.hash or file.older == _hash(folder, cascade, stage, beside)):
                older[stage.name] = file.older
    return older


def _beside_settings(
    cascade: Cascade, stage: Stage, identity: Identity, older: Mapping[str, str]
) -> tuple[list[str], str | None, list[str | None]]:
    """Hashes of the data, the parent and the teachers; None for a parent or teacher that has changed."""
    parent = cascade.parent(stage)
    teachers = [older.get(teacher.name) for teacher in teacher_stages(cascade, stage)]
    return [identity.data[source] for source in sources(stage)], older.get(parent.name if parent else BASE), teachers


def _hash(folder: Path, cascade: Cascade, stage: Stage, beside: Iterable[Any]) -> str | None:
    """The older hash of `stage`, with the settings of the folder. None if these differ from the settings of `stage`, or
    if it is not to train in float32, as all did then.

    The folder does not have the engines' settings, so today's are used. If they were different, the hash differs."""
    if changed_settings(folder, stage) or cascade.layout(stage).parallel.precision != "float32":
        return None
    own = {key: value for key, value in read_yaml(folder / "stage.yaml").items() if key not in LEFT_OUT}
    rollout = cascade.layout(stage).rollout
    return digest([own | {"engines": {"dtype": rollout.dtype, "replay_routes": rollout.replay_routes}}, *beside])
