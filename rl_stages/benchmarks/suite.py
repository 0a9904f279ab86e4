"""A suite: a table of several benchmarks, as a paper reports them. `suites/` has the shipped ones."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.benchmarks.benchmark import MODES, Benchmark, Sampled
from cascade_rl.rl_stages.benchmarks.benchmark_rows import benchmark_tasks
from cascade_rl.rl_stages.core.messages import shown
from cascade_rl.rl_stages.data.rows import HUB

SUITES = Path(__file__).parent / "suites"
NEEDED = {"rows": str, "answers": int, "max_new_tokens": int, "temperature": float, "top_p": float, "thinking": str}


@dataclass(frozen=True)
class Asked:
    """What is asked of a suite.

    only      these of its benchmarks; none: all
    sampled   fields of Sampled that hold for all of them, instead of the suite's
    answers   benchmark -> number of answers, instead of either
    thinking  key of MODES, instead of the suite's
    method    of all of them, instead of the suite's
    """

    only: Sequence[str] = ()
    sampled: Mapping[str, Any] = field(default_factory=dict)
    answers: Mapping[str, int] = field(default_factory=dict)
    thinking: str | None = None
    method: str | None = None


def read_suite(name: str, folder: Path, asked: Asked) -> Iterator[Benchmark]:
    """The benchmarks of a shipped suite, or of one's own TOML file, with their rows in `folder`.

    Raises UserError for an unknown suite, key or benchmark, and for rows that are not in the folder.
    """
    tables = _tables(name)
    _require_known(name, tables, (*asked.only, *asked.answers))
    for benchmark, table in tables.items():
        if not asked.only or benchmark in asked.only:
            _check(benchmark, table)
            yield _benchmark(benchmark, table, folder, asked)


def _benchmark(name: str, table: Mapping[str, Any], folder: Path, asked: Asked) -> Benchmark:
    source = table["rows"] if table["rows"].startswith(HUB) else str(folder / table["rows"])
    own = {"answers": asked.answers[name]} if name in asked.answers else {}
    return Benchmark(
        name,
        {task.id: task for task in benchmark_tasks(source, name)},
        Sampled.of({**table, **asked.sampled, **own}),
        MODES[asked.thinking or table["thinking"]],
        asked.method or table.get("method"),
        table.get("published", {}),
    )


def _require_known(suite: str, known: Mapping[str, Any], names: Iterable[str]) -> None:
    if unknown := set(names) - known.keys():
        raise UserError(f"suite {suite}: expected benchmarks of it ({', '.join(known)}); found {min(unknown)!r}")


def _tables(name: str) -> dict[str, dict[str, Any]]:
    path = Path(name) if name.endswith(".toml") else SUITES / f"{name}.toml"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in SUITES.glob("*.toml")))
        raise UserError(f"suite: expected one of {known}, or a file.toml of your own; found {name!r}")
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
