"""The hash of stages before schema 1, which covered every key with its value. It identifies run folders of that time.

It is computed from the stage.yaml of a folder, which has the keys of its time, and from today's data. If it equals the
recorded hash, neither data nor parent nor teachers have changed. The settings are compared key by key.
"""

from itertools import product
from pathlib import Path

from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.stage import Stage
from cascade_rl.rl_stages.config.text import read_yaml, to_plain
from cascade_rl.rl_stages.run.stage_graph import Identity, digest, sources, teacher_stages
from cascade_rl.rl_stages.run.upgrade.hash_file import HashFile
from cascade_rl.rl_stages.run.upgrade.recorded import changed_settings
from cascade_rl.rl_stages.run.upgrade.same_weights import Names, free_keys

# As they were when this hash was in use.
BASE_KEYS = ("hf", "hf_config", "published")
LEFT_OUT = ("parent", "gate", "nproc", "parallel", "rollout", "checkpoint_every", "keep_checkpoints")


def older_base_hash(cascade: Cascade) -> str:
    return digest([{key: to_plain(getattr(cascade.base, key)) for key in BASE_KEYS}, cascade.seed])


def has_older_hash(
    file: HashFile, folder: Path, cascade: Cascade, stage: Stage, identity: Identity, parent: str, names: Names
) -> bool:
    """Whether the folder has the older hash of `stage`, with its own settings, which do not differ from the stage's.

    names   what else the weights of the stages before are known as; `parent` is among them, or is the base
    The folder does not have the engines' settings, so today's are used. If they were different, the hash differs."""
    newer = {"precision", "max_staleness"} & {*identity.settings.get("parallel", ()), *identity.settings["rollout"]}
    if newer or changed_settings(folder, stage, free_keys(stage)):
        return False
    own = {key: value for key, value in read_yaml(folder / "stage.yaml").items() if key not in LEFT_OUT}
    rollout = cascade.layout(stage).rollout
    settings = own | {"engines": {"dtype": rollout.dtype, "replay_routes": rollout.replay_routes}}
    data = [identity.data[source] for source in sources(stage)]
    teachers = (names[teacher.name] for teacher in teacher_stages(cascade, stage))
    return any(
        file.hash == digest([settings, data, of_parent, list(of_teachers)])
        for of_parent, *of_teachers in product(names[parent], *teachers)
    )
