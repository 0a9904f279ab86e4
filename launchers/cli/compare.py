"""`cascade compare RUN RUN`: the settings that differ between two runs, and their scores in every domain and stage."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from cascade_rl.launchers.report.score_table import gain
from cascade_rl.rl_stages.config.text import changes, leaves, to_plain
from cascade_rl.rl_stages.run.run_folder import RunFolder


def run(first: Path, second: Path) -> int:
    runs = RunFolder.open(first), RunFolder.open(second)
    console = Console(highlight=False)
    console.print(settings_table(*runs))
    console.print(scores_table(*runs))
    return 0


def settings_table(first: RunFolder, second: RunFolder) -> Table:
    """The keys that differ, with both values. A run without the key has `absent`."""
    table = Table("setting", first.root.name, second.root.name, title="settings that differ")
    for key, values in differences(first, second):
        table.add_row(key, *map(str, values))
    return table


def differences(first: RunFolder, second: RunFolder) -> Iterator[tuple[str, tuple[Any, Any]]]:
    return changes(leaves(to_plain(first.cascade)), leaves(to_plain(second.cascade)))


def scores_table(first: RunFolder, second: RunFolder) -> Table:
    """Held-out scores after each stage that both runs have evaluated."""
    table = Table("stage", "domain", first.root.name, second.root.name, "difference", title="held-out scores")
    for name, domain, one, other in scored(first, second):
        table.add_row(name, domain, f"{one:.3f}", f"{other:.3f}", gain(one, other))
    return table


def scored(first: RunFolder, second: RunFolder) -> Iterator[tuple[str, str, float, float]]:
    others = {stage.config.name: stage.scores().get("after", {}) for stage in second.stages}
    for stage in first.stages:
        after, other = stage.scores().get("after", {}), others.get(stage.config.name, {})
        for domain in [domain for domain in after if domain in other]:
            yield stage.config.name, domain, after[domain], other[domain]
