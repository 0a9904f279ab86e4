"""The numbers of an evaluation, from the kept answers, as tables and as JSON."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from cascade_rl.launchers.evaluate.estimates import Estimate, difference, majority, over_prompts, pass_at, sizes
from cascade_rl.launchers.evaluate.kept_answers import Key, Source
from cascade_rl.launchers.evaluate.votes import VOTES
from cascade_rl.rl_stages.core.task import Task

Group = tuple[Key, Sequence[Mapping[str, Any]]]


@dataclass(frozen=True)
class Result:
    """Of one source in one domain. `means`: prompt -> mean score of its answers."""

    domain: str
    source: Source
    numbers: Mapping[str, Estimate]
    means: Mapping[str, float]


def results(groups: Iterable[Group], tasks: Mapping[str, Task], answers: int) -> list[Result]:
    """By domain and source, in order."""
    found: defaultdict[tuple[str, Source], list[Group]] = defaultdict(list)
    for (source, name), rows in groups:
        found[tasks[name].domain, source].append(((source, name), rows))
    return [_result(*key, own, tasks, answers) for key, own in sorted(found.items())]


def _result(domain: str, source: Source, own: Sequence[Group], tasks: Mapping[str, Task], answers: int) -> Result:
    scores = {name: [row["score"] for row in rows] for (_, name), rows in own}
    means = {name: fmean(values) for name, values in scores.items()}
    numbers = {f"avg@{answers}": over_prompts(list(means.values()))}
    for k in sizes(answers) if answers > 1 else ():
        numbers[f"pass@{k}"] = over_prompts([pass_at(k, values) for values in scores.values()])
    if answers > 1 and (vote := VOTES.get(domain)):
        votes = {name: [vote(tasks[name], row["answer"]) for row in rows] for (_, name), rows in own}
        numbers[f"maj@{answers}"] = over_prompts([majority(votes[name], scores[name]) for name in scores])
    numbers["cut"] = over_prompts([fmean(row["finish"] != "stop" for row in rows) for _, rows in own])
    numbers["tokens"] = over_prompts([fmean(row["tokens"] for row in rows) for _, rows in own])
    return Result(domain, source, numbers, means)


def differences(found: Sequence[Result]) -> Iterator[tuple[str, str, Estimate]]:
    """For each domain and two sources: their names, and by how much the second's mean score is above the first's."""
    for one, other in combinations(found, 2):
        if one.domain == other.domain and one.means.keys() & other.means.keys():
            yield one.domain, f"{other.source} - {one.source}", difference(one.means, other.means)


def show(found: Sequence[Result]) -> None:
    console = Console(highlight=False)
    names = list(dict.fromkeys(name for result in found for name in result.numbers))
    table = Table("domain", "model", "prompts", *names, title="mean over prompts ± half of a 95 % interval")
    for result in found:
        cells = [_cell(name, result.numbers.get(name)) for name in names]
        table.add_row(result.domain, str(result.source), f"{len(result.means):,}", *cells)
    console.print(table)
    compared = list(differences(found))
    if compared:
        pairs = Table("domain", "compared", "difference of scores, paired by prompt")
        for domain, names_of_two, gap in compared:
            pairs.add_row(domain, names_of_two, str(gap))
        console.print(pairs)


def plain(found: Sequence[Result]) -> dict[str, Any]:
    """For JSON."""
    rows = [
        {"domain": result.domain, **result.source._asdict(), "prompts": len(result.means)}
        | {name: number._asdict() for name, number in result.numbers.items()}
        for result in found
    ]
    pairs = [{"domain": domain, "compared": names, **gap._asdict()} for domain, names, gap in differences(found)]
    return {"results": rows, "differences": pairs}


def _cell(name: str, number: Estimate | None) -> str:
    if number is None:
        return "-"
    return f"{number.mean:,.0f}" if name == "tokens" else str(number)
