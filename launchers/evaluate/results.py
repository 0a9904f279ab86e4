"""The numbers of an evaluation, from the kept answers, as tables and as JSON."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from cascade_rl.launchers.evaluate.benchmark import Benchmark
from cascade_rl.launchers.evaluate.estimates import Estimate, difference, majority, over_prompts, pass_at, sizes
from cascade_rl.launchers.evaluate.kept_answers import Key, Source
from cascade_rl.launchers.evaluate.votes import VOTES

Group = tuple[Key, Sequence[Mapping[str, Any]]]


@dataclass(frozen=True)
class Result:
    """Of one source in one benchmark, or in one domain of the rows of a command line.

    means  prompt -> mean score of its answers
    """

    benchmark: str
    source: Source
    numbers: Mapping[str, Estimate]
    means: Mapping[str, float]


def results(benchmark: Benchmark, groups: Iterable[Group]) -> list[Result]:
    """By name and source, in order."""
    found: defaultdict[tuple[str, Source], list[Group]] = defaultdict(list)
    for (source, name), rows in groups:
        found[benchmark.name or benchmark.tasks[name].domain, source].append(((source, name), rows))
    return [_result(*key, own, benchmark) for key, own in sorted(found.items())]


def _result(label: str, source: Source, own: Sequence[Group], benchmark: Benchmark) -> Result:
    answers, tasks = benchmark.sampled.answers, benchmark.tasks
    scores = {name: [row["score"] for row in rows] for (_, name), rows in own}
    means = {name: fmean(values) for name, values in scores.items()}
    numbers = {f"avg@{answers}": over_prompts(list(means.values()))}
    for k in sizes(answers) if answers > 1 else ():
        numbers[f"pass@{k}"] = over_prompts([pass_at(k, values) for values in scores.values()])
    domains = {tasks[name].domain for name in scores}
    if answers > 1 and domains <= VOTES.keys():
        votes = {
            name: [VOTES[tasks[name].domain](tasks[name], row["answer"]) for row in rows] for (_, name), rows in own
        }
        numbers[f"maj@{answers}"] = over_prompts([majority(votes[name], scores[name]) for name in scores])
    numbers["cut"] = over_prompts([fmean(row["finish"] != "stop" for row in rows) for _, rows in own])
    numbers["tokens"] = over_prompts([fmean(row["tokens"] for row in rows) for _, rows in own])
    return Result(label, source, numbers, means)


def differences(found: Sequence[Result]) -> Iterator[tuple[Result, Result, Estimate]]:
    """For each benchmark and two sources: by how much the second's mean score is above the first's."""
    for one, other in combinations(found, 2):
        if one.benchmark == other.benchmark and one.means.keys() & other.means.keys():
            yield one, other, difference(one.means, other.means)


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


def plain(found: Sequence[Result]) -> dict[str, Any]:
    """For JSON."""
    rows = [
        {"benchmark": result.benchmark, **result.source._asdict(), "prompts": len(result.means)}
        | {name: number._asdict() for name, number in result.numbers.items()}
        for result in found
    ]
    pairs = [
        {"benchmark": one.benchmark, "compared": f"{other.source} - {one.source}", **gap._asdict()}
        for one, other, gap in differences(found)
    ]
    return {"results": rows, "differences": pairs}


def _cell(name: str, number: Estimate | None) -> str:
    if number is None:
        return "-"
    return f"{number.mean:,.0f}" if name == "tokens" else str(number)
