"""The first rows of the data that are on this machine: enough for a rehearsal, of each domain."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cascade_rl.launchers.rehearse.published_rows import write_rows
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.stage import OnPolicyStage, Stage
from cascade_rl.rl_stages.data.rows import Row, read_rows
from cascade_rl.rl_stages.tasks.domains import domain_named
from cascade_rl.rl_stages.tasks.stage_domains import local_readers

FIRST = 64  # of a domain, of which about a tenth are held out


def write_first_rows(cascade: Cascade, folder: Path) -> dict[str, str]:
    """Writes `folder/<path>/rows.jsonl` for each data path that exists: old path -> new path.

    Streams a source until each domain that its stage trains has FIRST rows. UserError as in `read_rows`.
    """
    return {
        path: write_rows(folder / path.lstrip("/"), _first(path, _domains(stage)))
        for path, stage in local_readers(cascade.stages).items()
        if Path(path).exists()
    }


def _domains(stage: Stage) -> set[str]:
    return set(stage.trained_domains) if isinstance(stage, OnPolicyStage) else {""}


def _first(path: str, wanted: set[str]) -> Iterator[Row]:
    found: Counter[str] = Counter()
    for _, row in read_rows(path):
        domain = _domain(row)
        found[domain] += 1
        if found[domain] <= FIRST:
            yield row
        if all(found[name] >= FIRST for name in wanted):
            return


def _domain(row: Row) -> str:
    """Empty for a demonstration and for a pair."""
    agent: Any = row.get("agent_ref")
    return domain_named(agent["name"]).name if isinstance(agent, dict) and "name" in agent else ""
