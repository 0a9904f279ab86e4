"""The stage graph: what a stage depends on, and the hash of everything that determines its weights.

Guarantees: a stage's hash changes with its own settings, its data, its parent, its teachers and the files that it
reads, and with nothing else. Settings that change how a stage runs but not what it computes (ranks, layout,
checkpoints, gates) do not change it; of a layout, the precisions of trainer and engines and the staleness of samples
do. With a few settings that do, a folder keeps its work (`upgrade/same_weights.py`). Nor does a new version whose new
keys have their defaults (`rl_stages/config/differences.py`).
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.settings import ParallelConfig, RolloutConfig
from cascade_rl.rl_stages.config.base import BEST, is_folder
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.differences import differences
from cascade_rl.rl_stages.config.sft_stage import SftStage
from cascade_rl.rl_stages.config.source import Source
from cascade_rl.rl_stages.config.stage import OnPolicyStage, Stage
from cascade_rl.rl_stages.core.hub import HUB, HubSource
from cascade_rl.rl_stages.run.files_read import base_files, file_hash, files_read
from cascade_rl.rl_stages.run.known_data import KnownData

# Settings of a stage that do not change its weights, or that are hashed by what they resolve to.
NOT_HASHED = {"parent", "gate", "nproc", "parallel", "rollout", "checkpoint_every", "keep_checkpoints"}
# The keys of a stage's layout that change them all the same, and which of them only what learns from samples.
OF_THE_LAYOUT = {
    "rollout": ("dtype", "replay_routes", "max_staleness", "cache_at_refit", "batch_order"),
    "parallel": ("precision",),
}
OF_SAMPLES = ("max_staleness", "cache_at_refit", "batch_order")


def teacher_stages(cascade: Cascade, stage: Stage) -> tuple[Stage, ...]:
    """The earlier stages that may teach or judge `stage`: those that it names, or all policy stages for "best"."""
    models = set(stage.models_read.values())
    return tuple(
        other for other in cascade.earlier(stage) if (BEST in models and other.trains_policy) or other.name in models
    )


def dependencies(cascade: Cascade, stage: Stage) -> tuple[Stage, ...]:
    """The stages that must be done before `stage`: parent and teachers, in the order of the cascade."""
    parent, teachers = cascade.parent(stage), teacher_stages(cascade, stage)
    return tuple(other for other in cascade.earlier(stage) if other is parent or other in teachers)


@dataclass(frozen=True)
class Identity:
    """Everything that determines a stage's weights.

    settings  the settings that are not the defaults
    data      by source, the hash of each source and of the config.json of each model folder that the stage reads
    parent    hash of the stage whose weights it starts from, or of the base
    teachers  by name, the hash of each earlier stage that teaches or judges it
    files     by name, the hash of each file of the models and rewards that it reads (rl_stages/run/files_read.py).
              Empty in folders of before, which did not look at them
    """

    settings: Mapping[str, Any]
    data: Mapping[str, str]
    parent: str
    teachers: Mapping[str, str]
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def hash(self) -> str:
        return digest({name: value for name, value in asdict(self).items() if value or name != "files"})


def base_content_hash(cascade: Cascade, files: Mapping[str, str]) -> str:
    """The hash of the base with its weights, given the `files` of a stage that starts from it."""
    own = base_files(cascade, files)
    return digest([base_hash(cascade), own]) if own else base_hash(cascade)


def base_hash(cascade: Cascade) -> str:
    """The hash of what the configuration says of the base.

    A chat template that is a file counts by its content: it changes every prompt."""
    template = cascade.base.chat_template or ""
    content = [_data_hash(template)] if template.endswith(".jinja") else []
    return digest([differences(cascade.base), cascade.seed, *content])


def identities(cascade: Cascade, known: KnownData | None = None) -> dict[str, Identity]:
    """The identity of each stage, by name. Reads each data file once, except those that are known."""
    known = known or KnownData()
    read = dict.fromkeys(source for stage in cascade.stages for source in sources(stage))
    data = {source: known.recall("bytes", source, _data_hash) for source in read}
    found: dict[str, Identity] = {}
    for stage in cascade.stages:
        parent = cascade.parent(stage)
        found[stage.name] = Identity(
            settings=_own_settings(cascade, stage),
            data={source: data[source] for source in sources(stage)},
            parent=found[parent.name].hash if parent else base_hash(cascade),
            teachers={teacher.name: found[teacher.name].hash for teacher in teacher_stages(cascade, stage)},
            files=files_read(cascade, stage, known),
        )
    return found


def content_hashes(cascade: Cascade, known: KnownData | None = None) -> dict[str, str]:
    """The hash of each stage, by name."""
    return {name: identity.hash for name, identity in identities(cascade, known).items()}


def selection(cascade: Cascade, only: str | None = None, first: str | None = None) -> tuple[Stage, ...]:
    """All stages, those named in `only` (comma-separated), or `first` and those after it.

    Raises UserError on an unknown name.
    """
    if only is not None and first is not None:
        raise UserError(f"expected --only or --from, found both ({only}, {first}).")
    if only is not None:
        named = [cascade.stage(name) for name in only.split(",")]
        return tuple(stage for stage in cascade.stages if stage in named)
    return cascade.stages if first is None else cascade.stages[cascade.stages.index(cascade.stage(first)) :]


def sources(stage: Stage) -> Iterator[str]:
    """The sources whose hashes are part of the stage's identity."""
    yield from (str(source) for source in stage.data)
    if not isinstance(stage, SftStage):  # which learns the same without them
        yield from stage.heldout
    yield from (f"{folder}/config.json" for folder in stage.models_read.values() if is_folder(folder))


def _own_settings(cascade: Cascade, stage: Stage) -> Mapping[str, Any]:
    own = {name: value for name, value in differences(stage).items() if name not in NOT_HASHED}
    layout = cascade.layout(stage)
    kept = {node: _differences(getattr(layout, node), names) for node, names in OF_THE_LAYOUT.items()}
    if not isinstance(stage, OnPolicyStage):
        for name in OF_SAMPLES:
            kept["rollout"].pop(name, None)  # it learns from none
    return {"kind": stage.kind, **own, "rollout": {}, **{node: keys for node, keys in kept.items() if keys}}


def _differences(node: RolloutConfig | ParallelConfig, names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in differences(node).items() if name in names}


def _data_hash(source: str) -> str:
    """The hash of a file, of all files below a folder, or of the commit of a data set of the Hub. If no such path
    exists, the hash of the text `source`. A source's count and weight are among the settings of its stage."""
    name = Source.parse(source).path
    if name.startswith(HUB):
        return digest([source, HubSource.parse(name).commit])
    path = Path(name)
    files = sorted(item for item in path.rglob("*") if item.is_file()) if path.is_dir() else [path]
    if not path.exists():
        return digest(source)
    return digest([[str(file.relative_to(path)), file_hash(file)] for file in files])


def digest(plain: Any) -> str:
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
