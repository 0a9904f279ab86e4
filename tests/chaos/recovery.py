"""What a kill costs: the seconds until the run is back, and the tokens that are drawn again."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tests.chaos.drawn_tokens import Draw, lost


class Kill(NamedTuple):
    """What was killed, when, and in a run of which `max_staleness`."""

    target: str
    time: float
    staleness: int


class Cost(NamedTuple):
    """Of one kill: seconds until the next token is drawn and until the next step has been learned, None where the run
    needed none; tokens that were drawn again because of it."""

    kill: Kill
    sampling_s: float | None
    step_s: float | None
    tokens: int


def costs(kills: Sequence[Kill], draws: list[Draw], steps: Iterable[float]) -> list[Cost]:
    """`steps`: the times at which steps ended."""
    before = [0.0] + [kill.time for kill in kills]
    gone, ended = lost(draws), sorted(steps)
    return [
        Cost(
            kill,
            _seconds(kill.time, [draw.time for draw in draws]),
            _seconds(kill.time, ended),
            sum(earlier < when <= kill.time for when in gone),
        )
        for kill, earlier in zip(kills, before, strict=False)
    ]


def table(found: Sequence[Cost]) -> str:
    """A row for each kind of kill: means, and the worst."""
    rows = [
        "| max_staleness | killed | times | s to a token: mean, worst | s to a step's end | tokens drawn again |",
        "|---|---|---|---|---|---|",
    ]
    for staleness, target in sorted({(cost.kill.staleness, cost.kill.target) for cost in found}):
        own = [cost for cost in found if cost.kill[::2] == (target, staleness)]
        columns = [[getattr(cost, name) for cost in own] for name in ("sampling_s", "step_s", "tokens")]
        rows.append(f"| {staleness} | {target} | {len(own)} | {' | '.join(map(_mean_and_worst, columns))} |")
    return "\n".join(rows)


def _seconds(since: float, times: Sequence[float]) -> float | None:
    return next((when - since for when in times if when > since), None)


def _mean_and_worst(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{sum(known) / len(known):.1f}, {max(known):.1f}" if known else "none"
