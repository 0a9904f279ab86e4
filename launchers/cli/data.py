"""`cascade data`: checks, filters and mixes rows, and prints a report. Sources are written as in a stage's `data`."""

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import IO

from cascade_rl.engine.core.errors import UserError
from cascade_rl.launchers import row_options
from cascade_rl.launchers.cli import data_pass_rate, template_report
from cascade_rl.launchers.report.left_out import show
from cascade_rl.rl_stages.config.source import Source, parse_sources
from cascade_rl.rl_stages.data.blend import Blend
from cascade_rl.rl_stages.data.decontamination import WORDS, Decontaminator
from cascade_rl.rl_stages.data.dedup import Deduplicator
from cascade_rl.rl_stages.data.difficulty import PAPER_FILTERS, PassRateFilter
from cascade_rl.rl_stages.data.prompt_length import PromptLength
from cascade_rl.rl_stages.data.released import converted
from cascade_rl.rl_stages.data.row_index import RowIndex
from cascade_rl.rl_stages.data.row_text import asked
from cascade_rl.rl_stages.data.rows import Row, read_rows, scan_rows
from cascade_rl.rl_stages.data.sift import Report, Rule, replacing, sift
from cascade_rl.rl_stages.run.durable_file import write_json
from cascade_rl.rl_stages.tasks.check_rows import check_rows
from cascade_rl.rl_stages.tasks.load_tasks import require_rows


def run(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    return int(options.command(options))


def _parser() -> argparse.ArgumentParser:
    description = "Converts, checks, filters, deduplicates, decontaminates and mixes rows of data."
    parser = argparse.ArgumentParser(prog="cascade data", description=description, allow_abbrev=False)
    kinds = parser.add_subparsers(title="commands", required=True, metavar="WHAT")
    convert = _kind(kinds, "convert", "Make tasks of the RL data sets that Cascade 1 released", out=True)
    convert.set_defaults(command=_convert)
    rates = _kind(kinds, "pass-rate", "Sample answers with a model and write each task's pass rate", out=True)
    data_pass_rate.add_arguments(rates)
    rates.set_defaults(command=lambda options: data_pass_rate.run(options, partial(_tell, options)))
    valid = "Check that every row is a valid task, demonstration or pair (if not, exit code 1)"
    check = _kind(kinds, "check", valid, sources="*")
    check.add_argument("--keep", type=Path, metavar="FILE.jsonl", help="write the valid rows (then exit code 0)")
    check.add_argument("--launcher", type=Path, metavar="FILE.py", help="also compare its chat template with a model's")
    check.add_argument("--model", type=Path, metavar="FOLDER", help="that model (default: the launcher's base)")
    _add_lengths(check)
    row_options.add_plain_rows(check)
    check.set_defaults(command=_check)
    keep = _kind(kinds, "filter", "Keep the rows of a difficulty or a length", out=True)
    rule = keep.add_mutually_exclusive_group(required=True)
    rule.add_argument("--pass-rate", type=float, nargs=2, metavar=("LOW", "HIGH"), help="keep these pass rates")
    rule.add_argument("--paper", choices=PAPER_FILTERS, help="keep what a paper keeps, by the scores of its answers")
    _add_lengths(keep, rule)
    keep.set_defaults(command=lambda options: _sift(options, _rule(options)))
    dedup = _kind(kinds, "dedup", "Drop rows that repeat an earlier one", out=True)
    dedup.set_defaults(command=lambda options: _sift(options, Deduplicator()))
    clean = _kind(kinds, "decontaminate", "Drop rows that share nine consecutive words with a benchmark", out=True)
    several = "rows of a benchmark; repeat for several"
    clean.add_argument("--against", action="append", required=True, metavar="SOURCE", help=several)
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


def _add_lengths(parser: argparse.ArgumentParser, rule: "argparse._MutuallyExclusiveGroup | None" = None) -> None:
    tokens = "keep prompts of LEAST to MOST tokens; needs --tokenizer"
    (rule or parser).add_argument("--prompt-tokens", type=int, nargs=2, metavar=("LEAST", "MOST"), help=tokens)
    counts = "model folder whose chat template and tokenizer count them"
    parser.add_argument("--tokenizer", type=Path, metavar="FOLDER", help=counts)


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
    """The number of rows left out; 0 if the usable ones are written."""
    started = time.perf_counter()
    lengths, form = _lengths(options), row_options.plain_rows(options)
    keeping: AbstractContextManager[IO[bytes] | None] = replacing(options.keep) if options.keep else nullcontext()
    with keeping as file:
        reports = {source: check_rows(scan_rows(source), lengths, file, form) for source in options.sources}
    rows = sum(report.rows for report in reports.values())
    seconds = time.perf_counter() - started
    for source, report in reports.items():
        title = f"{source}: {report.rows:,} rows, {report.kept.total():,} usable, {report.dropped.total():,} left out"
        show(report, title, "left out")
    print(f"{rows:,} rows in {seconds:.1f} s ({rows / seconds:,.0f} rows/s)")
    if options.json:
        write_json(options.json, {source: report.plain() for source, report in reports.items()})
    return 0 if options.keep else sum(report.dropped.total() for report in reports.values())


def _convert(options: argparse.Namespace) -> int:
    rows = (found for source in options.sources for found in converted(source))
    with replacing(options.out) as file:
        report = check_rows(rows, None, file)
    kept, dropped = report.kept.total(), report.dropped.total()
    _tell(options, report, f"{options.out}: {kept:,} rows written, {dropped:,} left out", "left out")
    return 0 if kept else 1


def _lengths(options: argparse.Namespace) -> PromptLength | None:
    if (options.prompt_tokens is None) != (options.tokenizer is None):
        raise UserError("expected --prompt-tokens and --tokenizer together, or neither; found one of them")
    return PromptLength(options.tokenizer, *options.prompt_tokens) if options.tokenizer else None


def _rule(options: argparse.Namespace) -> Rule:
    if options.paper:
        return PAPER_FILTERS[options.paper]
    return _lengths(options) or PassRateFilter(*options.pass_rate)


def _sift(options: argparse.Namespace, rule: Rule) -> int:
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
    show(report, title, wrong)
    if options.json:
        write_json(options.json, report.plain())
