"""The numbers of an evaluation as tables."""

from collections.abc import Mapping, Sequence
from itertools import groupby

from rich.console import Console
from rich.table import Column, Table

from cascade_rl.rl_stages.benchmarks.benchmark import Benchmark
from cascade_rl.rl_stages.benchmarks.estimates import Estimate
from cascade_rl.rl_stages.benchmarks.results import Result, Source, differences


def show(found: Sequence[Result], asked: Sequence[Benchmark]) -> None:
    """Models are numbered, since a folder's name is longer than a column."""
    console = Console(highlight=False)
    numbers = {source: str(number) for number, source in enumerate(dict.fromkeys(one.source for one in found), start=1)}
    for source, number in numbers.items():
        console.print(f"model {number}: {source}", soft_wrap=True, markup=False)
    for title, own in groupby(sorted(found, key=_first_number), key=_first_number):
        console.print(_table(title, list(own), numbers))
    compared = list(differences(found))
    if compared:
        pairs = Table("benchmark", "models", "difference of scores, paired by prompt")
        for one, other, gap in compared:
            pairs.add_row(one.benchmark, f"{numbers[other.source]} - {numbers[one.source]}", str(gap))
        console.print(pairs)
    for benchmark in asked:
        if benchmark.published:
            reported = ", ".join(f"{model} {percent}" for model, percent in benchmark.published.items())
            console.print(f"published, {benchmark.name}, in percent: {reported}")


def _first_number(result: Result) -> str:
    return next(iter(result.numbers))


def _table(title: str, found: Sequence[Result], numbers: Mapping[Source, str]) -> Table:
    names = list(dict.fromkeys(name for result in found for name in result.numbers))
    name = Column("benchmark", overflow="fold")
    table = Table(name, "model", "prompts", *names, title=f"{title}: mean over prompts ± half of a 95 % interval")
    for result in found:
        cells = [_cell(name, result.numbers.get(name)) for name in names]
        table.add_row(result.benchmark, numbers[result.source], f"{len(result.means):,}", *cells)
    return table


def _cell(name: str, number: Estimate | None) -> str:
    if number is None:
        return "-"
    return f"{number.mean:,.0f}" if name == "tokens" else str(number)
