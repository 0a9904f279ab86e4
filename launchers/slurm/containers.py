"""Checks before submission that a job finds its files inside its container."""

from collections.abc import Iterable
from pathlib import Path

from cascade_rl.engine.core.errors import UserError
from cascade_rl.launchers.slurm.cluster import Cluster
from cascade_rl.rl_stages.config.base import is_folder
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.source import Source
from cascade_rl.rl_stages.core.hub import HUB


def all_mounts(cluster: Cluster, run: Path) -> tuple[str, ...]:
    """The profile's mounts, plus one for the run folder if none of them contains it. Empty without a container."""
    if cluster.container_image is None:
        return ()
    if any(run.is_relative_to(target) for _, target in map(_ends, cluster.mounts)):
        return cluster.mounts
    return (*cluster.mounts, f"{run}:{run}")


def check_container(cluster: Cluster, cascade: Cascade, workdir: Path) -> None:
    """Raises UserError for a missing image or mount source, and for what no mount contains: a file of the stages, or
    cache_dir."""
    image = cluster.container_image
    if image is None:
        return
    if image.startswith(("/", ".")) and not Path(image).exists():
        raise UserError(f"container_image: no such file: {image}. Expected a registry name or the path of an image.")
    for source, _ in map(_ends, cluster.mounts):
        if not source.exists():
            raise UserError(f"mounts: no such file: {source}. The source of a mount must exist.")
    targets = [target for _, target in map(_ends, cluster.mounts)]
    caches = [Path(cluster.cache_dir)] if cluster.cache_dir else []
    for path in (workdir, *caches, *(workdir / read for read in _paths_read(cascade))):
        if not any(path.is_relative_to(target) for target in targets):
            raise UserError(
                f"mounts: expected one that contains '{path}', found only {', '.join(map(str, targets)) or 'none'}. "
                f"Add '{path}:{path}' or a folder above it."
            )


def _ends(mount: str) -> tuple[Path, Path]:
    source, target, *_ = [*mount.split(":"), ""]
    if not source.startswith("/") or not target.startswith("/"):
        raise UserError(f"mounts: expected SOURCE:TARGET[:ro] with absolute paths, found '{mount}'.")
    return Path(source), Path(target)


def _paths_read(cascade: Cascade) -> Iterable[str]:
    if cascade.base.hf is not None:
        yield cascade.base.hf
    for stage in cascade.stages:
        yield from (model for model in stage.models_read.values() if is_folder(model))
        sources = map(Source.parse, (*stage.data, *stage.heldout))
        yield from (source.path for source in sources if not source.generated and not source.path.startswith(HUB))
