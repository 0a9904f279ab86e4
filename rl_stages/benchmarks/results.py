"""The numbers of an evaluation, from the kept answers, with 95 % intervals."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean
from typing import Any, NamedTuple

from cascade_rl.rl_stages.benchmarks.benchmark import Benchmark
from cascade_rl.rl_stages.benchmarks.estimates import Estimate, difference, majority, over_prompts, pass_at, sizes
from cascade_rl.rl_stages.benchmarks.votes import VOTES


class Source(NamedTuple):
    """Who answered, and in which mode of thinking: "on", "off" or the "template"'s own."""

    model: str
    mode: str

    def __str__(self) -> str:
        return self.model if self.mode == "template" else f"{self.model}, thinking {self.mode}"


Key = tuple[Source, str]
"""Who answered which prompt."""
Group = tuple[Key, Sequence[Mapping[str, Any]]]
"""A prompt's answers, each with its "answer" (text), "score", "finish" and "tokens"."""


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


def in_words(found: Mapping[str, Any]) -> Iterator[str]:
    """The mean scores and their differences in `plain`, a line each."""
    for row in found["results"]:
        average = next(name for name in row if name.startswith("avg@"))
        source = Source(row["model"], row["mode"])
        yield f"{row['benchmark']}: {average} {Estimate(**row[average])} of {row['prompts']:,} prompts by {source}"
    for row in found["differences"]:
        yield f"{row['benchmark']}: {row['compared']}: {Estimate(row['mean'], row['half'])}"


def flat(found: Mapping[str, Any]) -> dict[str, float]:
    """The numbers in `plain` and their half intervals, by names that every tracker takes."""
    named = {
        f"{row['benchmark']}/{row['mode']}/{name.replace('@', '_at_')}": Estimate(**number)
        for row in found["results"]
        for name, number in row.items()
        if isinstance(number, dict)
    } | {f"{row['benchmark']}/difference": Estimate(row["mean"], row["half"]) for row in found["differences"]}
    halves = {f"{name}/half": number.half for name, number in named.items() if number.half is not None}
    return {name: number.mean for name, number in named.items()} | halves
