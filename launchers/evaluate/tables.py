"""The numbers of an evaluation as a table: models side by side, so that it fits a terminal whatever is measured."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, groupby, repeat

from rich.console import Console
from rich.table import Column, Table

from cascade_rl.rl_stages.benchmarks.benchmark import Benchmark
from cascade_rl.rl_stages.benchmarks.estimates import Estimate
from cascade_rl.rl_stages.benchmarks.results import Result, Source, differences

Row = tuple[str, Sequence[str]]
"""The name of a number, and its cell of each source."""


def show(found: Sequence[Result], asked: Sequence[Benchmark]) -> None:
    """Models are numbered, since a folder's name is longer than a column."""
    console = Console(highlight=False, markup=False)
    numbers = {source: str(number) for number, source in enumerate(dict.fromkeys(one.source for one in found), start=1)}
    for source, number in numbers.items():
        console.print(f"model {number}: {source}", soft_wrap=True)
    columns = [Column(number, justify="right") for number in numbers.values()]
    title = "mean over prompts ± half of a 95 % interval"
    table = Table(Column("benchmark", overflow="fold"), "number", *columns, title=title)
    for name, own in groupby(found, key=lambda one: one.benchmark):
        for label, (number, cells) in zip(chain([name], repeat("")), _rows(list(own), numbers), strict=False):
            table.add_row(label, number, *cells)
        table.add_section()
    console.print(table)
    for benchmark in asked:
        if benchmark.published:
            reported = ", ".join(f"{model} {percent}" for model, percent in benchmark.published.items())
            console.print(f"published, {benchmark.name}, in percent: {reported}")


def _rows(own: Sequence[Result], numbers: Mapping[Source, str]) -> Iterator[Row]:
    """Of one benchmark: how many prompts, each number, and by how much each two models differ."""
    of = {one.source: one for one in own}
    yield "prompts", [f"{len(of[source].means):,}" if source in of else "-" for source in numbers]
    for name in dict.fromkeys(name for one in own for name in one.numbers):
        yield name, [_cell(name, of[source].numbers.get(name) if source in of else None) for source in numbers]
    for one, other, gap in differences(own):
        pair = f"{numbers[other.source]} - {numbers[one.source]}"
        yield pair, [str(gap) if source == other.source else "" for source in numbers]


def _cell(name: str, number: Estimate | None) -> str:
    if number is None:
        return "-"
    return f"{number.mean:,.0f}" if name == "tokens" else str(number)
