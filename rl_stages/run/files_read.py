"""The files that a stage reads besides its data, by content: the models that it starts from, learns from or is judged
by, and the code of `python:` rewards, domains and stages.

A model counts with its weights, its configuration and its tokenizer, so a checkpoint that was replaced under the same
name is noticed, whatever its size. Of code, the file of its module counts, not what that imports.
"""

import hashlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from cascade_rl.rl_stages.config.base import is_folder
from cascade_rl.rl_stages.config.cascade import OWN_KIND, Cascade
from cascade_rl.rl_stages.config.stage import OnPolicyStage, Stage
from cascade_rl.rl_stages.run.known_data import KnownData

PYTHON = ("python", "python-answer", "python-domain")  # kinds of domains whose target is MODULE:NAME
OF_A_MODEL = {".safetensors", ".json", ".jinja", ".model", ".txt"}
SAID_BYTES = 2e9  # a few seconds
READERS = 8  # threads; hashing leaves the interpreter's lock


def files_read(cascade: Cascade, stage: Stage, known: KnownData) -> dict[str, str]:
    """The hash of each file, by folder and name or by `python:` module. A folder that is not here has none."""
    modules = dict.fromkeys((*_rewards(stage), *_own_kind(stage)))
    found = {f"python:{module}": file_hash(file) for module in modules if (file := module_file(module))}
    for folder in _models(cascade, stage):
        if Path(folder).is_dir():
            hashes = known.recall("model", folder, _model_files)
            found |= {f"{folder}/{name}": content for name, content in hashes.items()}
    return found


def base_files(cascade: Cascade, files: Mapping[str, str]) -> dict[str, str]:
    """Those of the base."""
    return {name: content for name, content in files.items() if name.startswith(f"{cascade.base.hf}/")}


def file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def module_file(module: str) -> Path | None:
    """The file of an importable module. Runs none of its code, nor that of its packages."""
    places: list[str] | None = None
    spec: ModuleSpec | None = None
    for part in module.split("."):
        spec = PathFinder.find_spec(part, places)
        places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(spec.origin) if spec and spec.origin else None


def _models(cascade: Cascade, stage: Stage) -> Iterator[str]:
    if cascade.parent(stage) is None and cascade.base.hf is not None:
        yield cascade.base.hf
    yield from (model for model in stage.models_read.values() if is_folder(model))


def _model_files(folder: str) -> dict[str, str]:
    files = sorted(file for file in Path(folder).iterdir() if file.is_file() and file.suffix in OF_A_MODEL)
    if (size := sum(file.stat().st_size for file in files)) > SAID_BYTES:
        print(f"reading {folder} once, {size / 1e9:.1f} GB, to notice when it is another model", flush=True)
    with ThreadPoolExecutor(READERS) as readers:
        return dict(zip((file.name for file in files), readers.map(file_hash, files), strict=True))


def _rewards(stage: Stage) -> Iterator[str]:
    for domain in stage.trained_domains if isinstance(stage, OnPolicyStage) else ():
        kind, _, target = domain.partition(":")
        if kind in PYTHON:
            yield target.partition(":")[0]


def _own_kind(stage: Stage) -> Iterator[str]:
    if stage.loop:
        yield stage.loop.partition(":")[0]
        yield stage.kind.removeprefix(OWN_KIND).partition(":")[0]
