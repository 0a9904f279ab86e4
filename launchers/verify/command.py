"""`cascade verify ROWS... ANSWERS`: what the rules of today say about answers, and where they once said another."""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from cascade_rl.launchers import row_options
from cascade_rl.launchers.verify.answers import read_answers
from cascade_rl.launchers.verify.matching import matched
from cascade_rl.launchers.verify.rescore import Rescored, rescore
from cascade_rl.rl_stages.data.sift import replacing

HEADINGS = ("answer", "row", "recorded", "score", "outcome", "detail")


def run(arguments: Sequence[str]) -> int:
    """Exit code 1 if a score differs from the recorded one, or if an answer could not be scored."""
    options = _parser().parse_args(arguments)
    answers = read_answers(options.answers)
    pairs = matched(options.rows, answers, row_options.row_form(options))
    started = time.perf_counter()
    found = rescore(pairs)
    seconds = time.perf_counter() - started
    differing = [one for one in found if one.differs]
    _show(differing if answers.recorded else found, answers.recorded)
    for reason, count in answers.left_out.most_common():
        print(f"left out, {reason}: {count:,}")
    print(f"{_summary(found)}; {seconds:.1f} s ({len(found) / seconds:,.0f} answers/s)")
    if answers.recorded:
        print(_differences(found, differing))
    if options.out:
        _write(options.out, found)
    return int(bool(differing) or any(one.verdict.score is None for one in found))


def _parser() -> argparse.ArgumentParser:
    description = (
        "Scores answers by their rows. Of answers with recorded scores it shows those that the rules of today score "
        "otherwise. Exit code 1 if there are any, or if an answer could not be scored."
    )
    parser = argparse.ArgumentParser(prog="cascade verify", description=description, allow_abbrev=False)
    rows = "rows of tasks: a file, a folder, hf:owner/name or generate:DOMAIN"
    parser.add_argument("rows", nargs="+", metavar="ROWS", help=rows)
    answers = "a .jsonl file of answers, a run's rollout file, or the folder of a run or a stage"
    parser.add_argument("answers", type=Path, metavar="ANSWERS", help=answers)
    row_options.add_arguments(parser)
    out = "also write every verdict; this file can be ANSWERS once the rules have changed"
    parser.add_argument("--out", type=Path, metavar="FILE.jsonl", help=out)
    return parser


def _show(found: Sequence[Rescored], recorded: bool) -> None:
    """A table on a terminal, otherwise a line with tabs for each answer."""
    from rich.console import Console  # takes as long as the rest of a command's help
    from rich.table import Table

    console = Console(highlight=False, markup=False)
    headings = [name for name in HEADINGS if recorded or name != "recorded"]
    lines = [[cell for name, cell in zip(HEADINGS, _cells(one), strict=True) if name in headings] for one in found]
    if not console.is_terminal:
        for line in lines:
            print("\t".join(line))
    elif lines:
        table = Table(*headings)
        for line in lines:
            table.add_row(*line)
        console.print(table)


def _cells(one: Rescored) -> Iterator[str]:
    yield from (one.given.where, one.given.name.value, _score(one.given.recorded), _score(one.verdict.score))
    yield from (one.verdict.outcome.value, " ".join(one.verdict.detail.split()))


def _score(score: float | None) -> str:
    return "none" if score is None else f"{score:.4g}"


def _summary(found: Sequence[Rescored]) -> str:
    scores = [one.verdict.score for one in found if one.verdict.score is not None]
    outcomes = Counter(one.verdict.outcome.value for one in found)
    told = ", ".join(f"{name} {count:,}" for name, count in outcomes.most_common())
    mean = f"mean score {sum(scores) / len(scores):.4f}" if scores else "no score"
    return f"{len(found):,} answers: {mean}; {told}"


def _differences(found: Sequence[Rescored], differing: Sequence[Rescored]) -> str:
    compared = sum(one.given.recorded is not None for one in found)
    changes = Counter(f"{_score(one.given.recorded)} -> {_score(one.verdict.score)}" for one in differing)
    told = "".join(f"; {change}: {count:,}" for change, count in changes.most_common())
    return f"{len(differing):,} of {compared:,} recorded scores differ{told}"


def _write(path: Path, found: Sequence[Rescored]) -> None:
    with replacing(path) as file:
        for one in found:
            file.write(json.dumps(_line(one), ensure_ascii=False).encode() + b"\n")


def _line(one: Rescored) -> dict[str, object]:
    turns, verdict = one.given.turns, one.verdict
    return {
        **one.given.name.field(),
        "answer": turns[0] if len(turns) == 1 else list(turns),
        "recorded": one.given.recorded,
        "score": verdict.score,
        "outcome": verdict.outcome.value,
        "parts": dict(verdict.parts),
        "detail": verdict.detail,
    }
