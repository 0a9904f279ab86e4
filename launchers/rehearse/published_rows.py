"""Writes rows of the published schemas for the data of a cascade that is not on this machine."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from cascade_rl.engine.core.errors import UserError
from cascade_rl.launchers.rehearse.demonstrations import demonstrations, preference_pairs
from cascade_rl.launchers.rehearse.exercises import Exercise, exercises
from cascade_rl.launchers.rehearse.row_lengths import lengths
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.config.reward_model_stage import RewardModelStage
from cascade_rl.rl_stages.config.sft_stage import SftStage
from cascade_rl.rl_stages.config.source import parse_sources
from cascade_rl.rl_stages.config.stage import OnPolicyStage, Stage
from cascade_rl.rl_stages.lessons.lesson import Row
from cascade_rl.rl_stages.tasks.stage_domains import local_readers

ROWS = 12  # of a domain: 4 held out, 8 in the train split
COMPARED = "rlhf"  # the domain whose prompts preference pairs have


Pools = Mapping[str, Mapping[str, list[Exercise]]]
"""The exercises of each path of RL, by domain."""


def write_missing_rows(cascade: Cascade, folder: Path) -> dict[str, str]:
    """Writes `folder/<path>/rows.jsonl` for each data path of the cascade that does not exist: old path -> new path.

    Prompts of RL have the lengths of row_lengths.py. Demonstrations are answers to all their short ones, in an order of
    its own for each path. The rows are the same at every call. Raises UserError for a domain that has no such rows.
    """
    readers = local_readers(cascade.stages)
    missing = [path for path in readers if not Path(path).exists()]
    pools = {
        path: _exercises(cascade, _domains(path, stage, readers), path if path in missing else None)
        for path, stage in readers.items()
        if isinstance(stage, OnPolicyStage)
    }
    return {path: write_rows(folder / path.lstrip("/"), _rows(cascade, readers[path], path, pools)) for path in missing}


def _domains(path: str, stage: OnPolicyStage, readers: Mapping[str, Stage]) -> list[str]:
    """What the path holds: the domains of its stage, without those that its other paths brought to an earlier stage."""
    first = (readers.get(source.path) for source in parse_sources(stage.data))
    earlier = [other for other in first if isinstance(other, OnPolicyStage) and other is not stage]
    brought = set(chain(*(other.trained_domains for other in earlier)))
    return [domain for domain in stage.trained_domains if domain not in brought]


def _exercises(cascade: Cascade, domains: Iterable[str], missing: str | None) -> dict[str, list[Exercise]]:
    """By domain. Raises UserError for a domain without exercises if the path that holds it is `missing`."""
    known, wanted = lengths(cascade.base.published), list(domains)
    if missing and (unknown := sorted(set(wanted) - known.keys())):
        raise UserError(
            f"{missing}: expected data, or a stage of {', '.join(sorted(known))}, whose rows a rehearsal can write; "
            f"found no such file, and a stage of {unknown[0]}. Put rows there first"
        )
    return {domain: exercises(domain, ROWS, known[domain]) for domain in wanted if domain in known}


def _rows(cascade: Cascade, stage: Stage, path: str, pools: Pools) -> list[Row]:
    if isinstance(stage, SftStage):
        rows = list(_taught(cascade, pools))
    elif isinstance(stage, RewardModelStage):
        rows = list(preference_pairs(exercises(COMPARED, ROWS, lengths(cascade.base.published)[COMPARED])))
    else:
        rows = [exercise.row for exercise in chain(*pools[path].values())]
    random.Random(path).shuffle(rows)
    return rows


def _taught(cascade: Cascade, pools: Pools) -> Iterator[Row]:
    """Demonstrations for all pools, also without thinking for the domains that a stage trains so."""
    largest: dict[str, list[Exercise]] = {}
    for domain, found in chain(*(pool.items() for pool in pools.values())):
        largest[domain] = max(largest.get(domain, []), found, key=len)
    for domain, found in largest.items():
        yield from demonstrations(found, thinking=True)
        if domain in _instant(cascade):
            yield from demonstrations(found, thinking=False)


def _instant(cascade: Cascade) -> set[str]:
    stages = [stage for stage in cascade.stages if isinstance(stage, GrpoStage)]
    some = [stage for stage in stages if stage.thinking_fraction is not None and stage.thinking_fraction < 1]
    return set(chain(*(stage.trained_domains for stage in some)))


def write_rows(folder: Path, rows: Iterable[Mapping[str, Any]]) -> str:
    """Writes `folder/rows.jsonl`; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (folder / "rows.jsonl").write_text("".join(lines), encoding="utf-8")
    return str(folder)
