"""Finds the settings nearest to those of a stage that fit. Every neighbour is planned; the fewest changes win."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from cascade_rl.engine.core.settings import RolloutConfig
from cascade_rl.engine.models.layout import divides
from cascade_rl.launchers.plan.stage_plan import Setting, fullest_bytes, problems

FACTORS, TOLD, CHANGES = (2, 4, 8), 3, 2
LEAST_CACHE = 1024  # MiB


Change = Mapping[str, Any]
"""Key -> value. Keys are written as in a launcher: parallel.context, rollout.engines, nproc, token_budget."""


def mends(setting: Setting) -> tuple[str, ...]:
    """Up to three suggestions of one change, or else of two changes, sorted by the memory of their fullest phase."""
    single = list(_changes(setting))
    for count in range(1, CHANGES + 1):
        found = [(fullest, chosen) for chosen in combinations(single, count) if (fullest := _fullest(setting, chosen))]
        if found:
            found.sort(key=lambda pair: pair[0])
            return tuple("; ".join(_told(setting, change) for change in chosen) for _, chosen in found[:TOLD])
    return ()


def _fullest(setting: Setting, chosen: Sequence[Change]) -> float | None:
    """Bytes of the fullest phase with these changes. None if it does not fit."""
    keys = [key for change in chosen for key in change]
    if len(set(keys)) < len(keys):
        return None
    for change in chosen:
        setting = _changed(setting, change)
    layout = setting.layout
    if not divides(setting.model.hf, setting.model.name_map, layout.parallel, layout.nproc) or any(problems(setting)):
        return None
    fullest = fullest_bytes(setting)
    return fullest if fullest <= setting.gpu.capacity else None


def _changed(setting: Setting, change: Change) -> Setting:
    stage, layout = setting.stage, setting.layout
    for key, value in change.items():
        owner, _, name = key.rpartition(".")
        values: dict[str, Any] = {name: value}
        if owner:
            part: dict[str, Any] = {owner: replace(getattr(layout, owner), **values)}
            layout = replace(layout, **part)
        elif key == "nproc":
            layout = replace(layout, **values)
        else:
            stage = replace(stage, **values)
    return replace(setting, stage=stage, layout=layout)


def _told(setting: Setting, change: Change) -> str:
    return ", ".join(f"{key} {_value(setting, key)} -> {value}" for key, value in change.items())


def _value(setting: Setting, key: str) -> Any:
    owner, _, name = key.rpartition(".")
    if owner:
        return getattr(getattr(setting.layout, owner), name)
    return setting.layout.nproc if key == "nproc" else getattr(setting.stage, key)


def _changes(setting: Setting) -> Iterator[Change]:
    yield from _of_parallel(setting)
    yield from _of_rollout(setting.layout.rollout)
    for factor in FACTORS:
        engines = setting.layout.rollout.engines * factor
        yield {"nproc": setting.layout.nproc * factor, "rollout.engines": engines}
    budget = -(-setting.work.longest // 1024) * 1024
    if setting.samples and budget < setting.stage.token_budget:
        yield {"token_budget": budget}


def _of_parallel(setting: Setting) -> Iterator[Change]:
    parallel = setting.layout.parallel
    for name in ("context", "tensor", "pipeline", "expert"):
        for factor in FACTORS:
            change: dict[str, Any] = {f"parallel.{name}": getattr(parallel, name) * factor}
            if name == "tensor" and not parallel.sequence:
                change["parallel.sequence"] = True
            if name == "pipeline" and parallel.pipeline_layers:
                change["parallel.pipeline_layers"] = None
            if name != "expert" or "E" in setting.model.pattern:
                yield change


def _of_rollout(rollout: RolloutConfig) -> Iterator[Change]:
    if not rollout.sleep and rollout.placement == "colocated":
        yield {"rollout.sleep": True}
    for factor in FACTORS:
        if rollout.engines % factor == 0:
            yield {"rollout.tensor": rollout.tensor * factor, "rollout.engines": rollout.engines // factor}
        if rollout.kv_cache_mib // factor >= LEAST_CACHE:
            yield {"rollout.kv_cache_mib": rollout.kv_cache_mib // factor}
