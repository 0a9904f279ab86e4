"""A benchmark: rows, and how they are answered. A suite is a table of several, as a paper reports them."""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cascade_rl.engine.core.errors import UserError
from cascade_rl.launchers.evaluate.benchmark_rows import benchmark_tasks
from cascade_rl.launchers.evaluate.sampler import Sampled
from cascade_rl.launchers.evaluate.test_time.methods import Method
from cascade_rl.rl_stages.core.messages import shown
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.data.rows import HUB

SUITES = Path(__file__).parent / "suites"
MODES: dict[str, tuple[str, ...]] = {name: (name,) for name in ("template", "on", "off")} | {"both": ("on", "off")}
NEEDED = {"rows": str, "answers": int, "max_new_tokens": int, "temperature": float, "top_p": float, "thinking": str}


@dataclass(frozen=True)
class Benchmark:
    """`name` is that of its folder in OUT; "" for the rows of a command line, whose numbers are by domain.

    modes      of thinking: "on", "off" or the "template"'s own
    method     how an answer is found; None: it is sampled
    published  what a paper reports, by model, in percent
    """

    name: str
    tasks: Mapping[str, Task]
    sampled: Sampled
    modes: Sequence[str]
    method: Method | None = None
    published: Mapping[str, float] = field(default_factory=dict)


def read_suite(name: str, folder: Path, options: argparse.Namespace) -> Iterator[Benchmark]:
    """The benchmarks of a shipped suite, or of one's own TOML file. What the command line says of sampling and
    thinking holds for all of them.

    Raises UserError for an unknown suite, key or benchmark, and for rows that are not in the folder.
    """
    tables = _tables(name)
    if unknown := set(options.only) - tables.keys():
        raise UserError(f"--only: expected benchmarks of the suite ({', '.join(tables)}); found {min(unknown)!r}")
    for benchmark, table in tables.items():
        if not options.only or benchmark in options.only:
            _check(benchmark, table)
            source = table["rows"] if table["rows"].startswith(HUB) else str(folder / table["rows"])
            tasks = {task.id: task for task in benchmark_tasks(source, benchmark)}
            modes = MODES[options.thinking or table["thinking"]]
            named = options.method or table.get("method")
            method = Method.parse(named) if named else None
            yield Benchmark(benchmark, tasks, Sampled.of(options, table), modes, method, table.get("published", {}))


def _tables(name: str) -> dict[str, dict[str, Any]]:
    path = Path(name) if name.endswith(".toml") else SUITES / f"{name}.toml"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in SUITES.glob("*.toml")))
        raise UserError(f"--suite: expected one of {known}, or a file.toml of your own; found {name!r}")
    try:
        return tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: expected TOML; {error}") from None


def _check(name: str, table: Mapping[str, Any]) -> None:
    if unknown := table.keys() - NEEDED.keys() - {"method", "published"}:
        raise UserError(
            f"[{name}]: expected the keys {', '.join(NEEDED)}, method and published; found {min(unknown)!r}"
        )
    for key, kind in NEEDED.items():
        if not isinstance(table.get(key), kind):
            raise UserError(f"[{name}]: expected {key!r} to be of type {kind.__name__}; found {shown(table.get(key))}")
    if table["thinking"] not in MODES:
        raise UserError(f"[{name}]: expected 'thinking' to be one of {', '.join(MODES)}; found {table['thinking']!r}")
