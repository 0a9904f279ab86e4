"""`cascade data`: checks, filters and mixes rows, and prints a report. Sources are written as in a stage's `data`."""

import argparse
import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from cascade_rl.engine.core.errors import UserError
from cascade_rl.launchers.cli import template_report
from cascade_rl.rl_stages.config.source import Source, parse_sources
from cascade_rl.rl_stages.data.blend import Blend
from cascade_rl.rl_stages.data.decontamination import WORDS, Decontaminator
from cascade_rl.rl_stages.data.dedup import Deduplicator
from cascade_rl.rl_stages.data.difficulty import PassRateFilter
from cascade_rl.rl_stages.data.row_index import RowIndex
from cascade_rl.rl_stages.data.row_text import asked
from cascade_rl.rl_stages.data.rows import Row, read_rows, scan_rows
from cascade_rl.rl_stages.data.sift import Report, replacing, sift
from cascade_rl.rl_stages.run.durable_file import write_json
from cascade_rl.rl_stages.tasks.demonstration import parse_demonstration
from cascade_rl.rl_stages.tasks.load_tasks import parse_task, require_rows, split_of

SHOWN = 110  # characters of an example in the table


def run(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    return int(options.command(options))


def _parser() -> argparse.ArgumentParser:
    description = "Checks, filters, deduplicates, decontaminates and mixes rows of data."
    parser = argparse.ArgumentParser(prog="cascade data", description=description, allow_abbrev=False)
    kinds = parser.add_subparsers(title="commands", required=True, metavar="WHAT")
    valid = "Check that every row is a valid task or demonstration (if not, exit code 1)"
    check = _kind(kinds, "check", valid, sources="*")
    check.add_argument("--launcher", type=Path, metavar="FILE.py", help="also compare its chat template with a model's")
    check.add_argument("--model", type=Path, metavar="FOLDER", help="that model (default: the launcher's base)")
    check.set_defaults(command=_check)
    keep = _kind(kinds, "filter", "Keep the rows whose pass_rate is in a range", out=True)
    keep.add_argument("--pass-rate", type=float, nargs=2, required=True, metavar=("LOW", "HIGH"), help="range to keep")
    keep.set_defaults(command=lambda options: _sift(options, PassRateFilter(*options.pass_rate)))
    dedup = _kind(kinds, "dedup", "Drop rows that repeat an earlier one", out=True)
    dedup.set_defaults(command=lambda options: _sift(options, Deduplicator()))
    clean = _kind(kinds, "decontaminate", "Drop rows that share nine consecutive words with a benchmark", out=True)
    clean.add_argument("--against", nargs="+", required=True, metavar="SOURCE", help="rows of the benchmark")
    clean.add_argument("--field", metavar="NAME", help="key of the benchmark's text (default: its messages)")
    clean.add_argument("--words", type=int, default=WORDS, help=f"number of consecutive words (default: {WORDS})")
    clean.set_defaults(command=_decontaminate)
    mix = _kind(kinds, "mix", "Shuffle the rows of all sources together, by their counts and weights", out=True)
    mix.add_argument("--count", type=int, metavar="N", help="rows to write; required if the sources have weights")
    mix.add_argument("--seed", type=int, default=1, help="seed of the order (default: 1)")
    mix.set_defaults(command=_mix)
    return parser


def _kind(
    kinds: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    text: str,
    out: bool = False,
    sources: str = "+",
) -> argparse.ArgumentParser:
    parser = kinds.add_parser(name, help=text, description=f"{text}.")
    parser.add_argument("sources", nargs=sources, metavar="SOURCE", help="a file, a folder or hf:owner/name")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the report to FILE")
    if out:
        parser.add_argument("--out", type=Path, required=True, metavar="FILE.jsonl", help="file to write")
    return parser


def check(sources: Sequence[str]) -> Report:
    """Checks every row: as a demonstration if it has `messages`, otherwise as a task. Wrong rows count as dropped."""
    report = Report()
    for source in sources:
        for where, row in scan_rows(source):
            try:
                if isinstance(row, UserError):
                    raise row
                report.kept[_label(row, where)] += 1
            except UserError as error:
                message = str(error).removeprefix(f"{where}: ")
                report.drop(_reason(message), f"{where}: {message}")
    return report


def mix(sources: Sequence[str], count: int | None, seed: int) -> Iterator[tuple[str, Row]]:
    """Yields (where, row) from all sources in a random order. No row comes twice.

    Sources with weights give `count` rows in these shares. Without weights, the result is all rows, or the first
    `count` of them. Raises UserError for weights without a count, and for a source with too few rows.
    """
    import numpy as np

    chosen = parse_sources(sources)
    lists = [RowIndex(source.path) for source in chosen]
    rng = np.random.default_rng(seed)
    for source, rows in zip(chosen, lists, strict=True):
        require_rows(source, len(rows))
    orders = [rng.permutation(len(rows))[: source.count] for source, rows in zip(chosen, lists, strict=True)]
    for number, place in _places(chosen, [len(order) for order in orders], count, seed):
        if place >= len(orders[number]):
            raise UserError(
                f"{chosen[number].path}: expected rows for its share of {count}; found only {len(orders[number])}. "
                "Lower --count or its weight"
            )
        yield lists[number][int(orders[number][place])]


def _places(sources: Sequence[Source], sizes: Sequence[int], count: int | None, seed: int) -> Iterator[tuple[int, int]]:
    import numpy as np

    weights = [source.weight for source in sources if source.weight is not None]
    if weights and count is None:
        raise UserError("expected --count N, because the sources have weights; found none")
    if weights:
        blend = Blend(weights)
        yield from (blend.at(position) for position in range(count or 0))
        return
    owners = np.repeat(np.arange(len(sizes)), sizes)
    if count is not None and count > len(owners):
        raise UserError(f"expected --count of at most {len(owners)}, the number of rows; found {count}")
    taken: Counter[int] = Counter()
    for owner in np.random.default_rng((seed, 1)).permutation(owners)[:count].tolist():
        yield owner, taken[owner]
        taken[owner] += 1


def _label(row: Row, where: str) -> str:
    if "messages" in row:
        parse_demonstration(row, where)
        return "demonstrations"
    task = parse_task(row, where, where)
    return f"{task.domain} {split_of(task.messages)}"


def _reason(message: str) -> str:
    """The expected part of a message, without list positions: rows with the same fault share it."""
    return re.sub(r"\[\d+\]", "[]", message.partition("; found")[0])


def _check(options: argparse.Namespace) -> int:
    """Exit code 1 if a row is wrong, or if the launcher's chat template differs from the model's."""
    if not options.launcher and (options.model or not options.sources):
        raise UserError(
            "expected --launcher FILE.py, or rows without --model; found neither. Name what is to be checked"
        )
    wrong = _check_rows(options) if options.sources else 0
    differing = template_report.differing(options.launcher, options.model) if options.launcher else 0
    return int(wrong > 0 or differing > 0)


def _check_rows(options: argparse.Namespace) -> int:
    """The number of wrong rows."""
    started = time.perf_counter()
    report = check(options.sources)
    seconds = time.perf_counter() - started
    rows = report.kept.total() + report.dropped.total()
    _tell(options, report, f"{rows:,} rows in {seconds:.1f} s ({rows / seconds:,.0f} rows/s)", "wrong")
    return report.dropped.total()


def _sift(options: argparse.Namespace, rule: PassRateFilter | Deduplicator | Decontaminator) -> int:
    rows = (found for source in options.sources for found in read_rows(source))
    report = sift(rows, rule, options.out)
    kept, dropped = report.kept.total(), report.dropped.total()
    _tell(options, report, f"{options.out}: {kept:,} rows kept, {dropped:,} dropped", "dropped")
    return 0


def _decontaminate(options: argparse.Namespace) -> int:
    texts = (_benchmark_text(options.field, *found) for source in options.against for found in read_rows(source))
    return _sift(options, Decontaminator(texts, options.words))


def _benchmark_text(field: str | None, where: str, row: Row) -> str:
    if field is None:
        try:
            return asked(row)
        except UserError as error:
            raise UserError(f"{where}: {error}; or name the key of its text with --field") from None
    if not isinstance(row.get(field), str):
        raise UserError(f"{where}: expected '{field}' to be text; found {row.get(field)!r}")
    return str(row[field])


def _mix(options: argparse.Namespace) -> int:
    report = Report()
    with replacing(options.out) as file:
        for where, row in mix(options.sources, options.count, options.seed):
            report.kept[where.rpartition(":")[0]] += 1
            file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
    _tell(options, report, f"{options.out}: {report.kept.total():,} rows, seed {options.seed}", "dropped")
    return 0


def _tell(options: argparse.Namespace, report: Report, title: str, wrong: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("kept", "rows")
    table.columns[1].justify = "right"
    for name, count in sorted(report.kept.items()):
        table.add_row(name, f"{count:,}")
    for reason, count in report.dropped.most_common():
        table.add_row(f"{wrong}: {reason}", f"{count:,}", style="red")
        for example in report.examples[reason]:
            table.add_row(f"  {example[:SHOWN]}", "", style="dim")
    console = Console(highlight=False, markup=False)
    console.print(title)
    console.print(table)
    if options.json:
        write_json(options.json, {"kept": report.kept, "dropped": report.dropped, "examples": report.examples})
