"""Whether a layout divides a model and its ranks. If it does not: the constraint, and the nearest layouts that do.

Works without torch: a launcher asks before anything is written or started.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product
from math import log2
from typing import Any

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.settings import ParallelConfig, check_world
from cascade_rl.engine.models.families.family import Family, family_of
from cascade_rl.engine.models.hf_config import HfConfig, read
from cascade_rl.engine.models.name_map import Cut, NameMap, Place

SIZES = ("tensor", "pipeline", "context", "expert", "expert_tensor")
NAMED = 3


def check_layout(hf: HfConfig, parallel: ParallelConfig, world: int | None = None) -> None:
    """Raises UserError if the model is not supported, or if the layout does not divide it or the `world` ranks.

    The message names the constraint and up to three of the nearest layouts that fit.
    """
    family = family_of(hf)
    family.transformer_config(hf), family.model_kwargs(hf)
    name_map = family.name_map(hf)
    try:
        _check(hf, family, name_map, parallel, world)
    except UserError as error:
        nearest = _nearest(hf, family, name_map, parallel, world)
        raise UserError(f"{error}. Nearest layouts that fit: {nearest}") from None


def divides(hf: HfConfig, name_map: NameMap, parallel: ParallelConfig, world: int) -> bool:
    """Whether `check_layout` passes. `name_map` is that of `hf`, made once so that checking many layouts is quick."""
    try:
        _check(hf, family_of(hf), name_map, parallel, world)
    except UserError:
        return False
    return True


def token_multiple(parallel: ParallelConfig) -> int:
    """What the length of each packed sequence is padded to a multiple of: two zigzag pieces for each context parallel
    rank, each with the same number of tokens for every tensor parallel rank under sequence parallelism."""
    pieces = 2 * parallel.context if parallel.context > 1 else 1
    return pieces * (parallel.tensor if parallel.sequence else 1)


def _check(hf: HfConfig, family: Family, name_map: NameMap, parallel: ParallelConfig, world: int | None) -> None:
    for name in (*SIZES, "virtual_pipeline"):
        if getattr(parallel, name) < 1:
            raise UserError(f"{name} must be at least 1; found {getattr(parallel, name)}: change `{name}`")
    name_map.check(_place(parallel))
    _check_sequence(family.pattern(hf), parallel)
    if "M" in family.pattern(hf):
        _check_mamba(hf, parallel)
    if "G" in family.pattern(hf):
        _check_delta_net(hf, parallel)
    if world is not None:
        check_world(parallel, world)


def _place(parallel: ParallelConfig) -> Place:
    sizes = ("tensor", "pipeline", "expert", "expert_tensor")
    cuts = {name: Cut(size=getattr(parallel, name)) for name in sizes}
    return Place(**cuts, virtual_pipeline=parallel.virtual_pipeline, pipeline_layers=parallel.pipeline_layers)


def _check_sequence(pattern: str, parallel: ParallelConfig) -> None:
    if {*"E+G"} & {*pattern} and parallel.tensor > 1 and not parallel.sequence:
        raise UserError(
            "experts, latent attention and gated delta nets under tensor parallelism need sequence parallelism; "
            f"found tensor = {parallel.tensor}, sequence = False: set `sequence`"
        )
    if parallel.sequence and parallel.tensor == 1:
        raise UserError(
            "sequence parallelism splits tokens over the tensor parallel ranks; found tensor = 1, sequence = True: "
            "raise `tensor` or unset `sequence`"
        )


def _check_mamba(hf: HfConfig, parallel: ParallelConfig) -> None:
    """Megatron splits a Mamba layer's heads over the context parallel ranks. State groups are split too, or copied."""
    heads = read(hf, "mamba_num_heads") // parallel.tensor
    groups = read(hf, "n_groups") // parallel.tensor
    told = f"on each of {parallel.tensor} tensor parallel ranks; found {parallel.context}: change `context`"
    if heads % parallel.context:
        raise UserError(f"context parallel size must divide the {heads} Mamba heads {told}")
    if groups % parallel.context and parallel.context % groups:
        raise UserError(f"context parallel size must divide, or be a multiple of, the {groups} state groups {told}")


def _check_delta_net(hf: HfConfig, parallel: ParallelConfig) -> None:
    """Megatron splits its heads over the context parallel ranks. Heads of values are a multiple of those of keys."""
    heads = read(hf, "linear_num_key_heads") // parallel.tensor
    if heads % parallel.context:
        raise UserError(
            f"context parallel size must divide the {heads} key heads of the delta net on each of {parallel.tensor} "
            f"tensor parallel ranks; found {parallel.context}: change `context`"
        )


def _nearest(hf: HfConfig, family: Family, name_map: NameMap, parallel: ParallelConfig, world: int | None) -> str:
    """Of the layouts that differ in one or two sizes, those that differ least."""
    fitting = []
    for candidate in dict.fromkeys(_neighbours(parallel, "E" in family.pattern(hf))):
        try:
            _check(hf, family, name_map, candidate, world)
        except UserError:
            continue
        fitting.append(candidate)
    fitting.sort(key=lambda candidate: _distance(parallel, candidate))
    return "; ".join(_difference(parallel, candidate) for candidate in fitting[:NAMED]) or "none"


def _neighbours(parallel: ParallelConfig, experts: bool) -> Iterator[ParallelConfig]:
    start = replace(parallel, **{name: max(getattr(parallel, name), 1) for name in (*SIZES, "virtual_pipeline")})
    sizes = {name: range(1, 2 * getattr(start, name) + 1) for name in SIZES}
    changes = {
        (*zip(names, values, strict=True),)
        for names in combinations(SIZES, 2)
        for values in product(*(sizes[name] for name in names))
    }
    for change in sorted(changes):
        sizes_changed: dict[str, Any] = dict(change)
        candidate = replace(start, **sizes_changed)
        if candidate.pipeline == 1:
            candidate = replace(candidate, virtual_pipeline=1)
        candidate = replace(candidate, sequence=candidate.tensor > 1 and (experts or parallel.sequence))
        yield from (candidate, replace(candidate, pipeline_layers=None))


def _distance(one: ParallelConfig, other: ParallelConfig) -> tuple[int, float]:
    """How many sizes differ, and by how many doublings in all."""
    doublings = [abs(log2(getattr(other, name) / max(getattr(one, name), 1))) for name in SIZES]
    return sum(value > 0 for value in doublings), sum(doublings)


def _difference(one: ParallelConfig, other: ParallelConfig) -> str:
    names = (*SIZES, "virtual_pipeline", "pipeline_layers", "sequence")
    changed = (name for name in names if getattr(one, name) != getattr(other, name))
    return ", ".join(f"{name} = {getattr(other, name)}" for name in changed)
