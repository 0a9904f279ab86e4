"""What the metrics of a stage say of common faults: rules as data, each with the page of docs/symptoms on it.

A rule compares the mean of a metric over the last steps with its mean over the first ones, or with a level. It ends
nothing, unlike `rl_stages/run/stop_rule.py`: an alert is something to look at, and may be what was wanted.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, variance
from typing import NamedTuple

from cascade_rl import launchers
from cascade_rl.rl_stages.config.stage import OnPolicyStage
from cascade_rl.rl_stages.run.run_folder import StageFolder

WINDOW = 10  # steps
SYMPTOMS = Path(launchers.__file__).parents[1] / "docs" / "symptoms"
Values = Sequence[float]
Test = Callable[[Values, Values], bool]
"""Whether a metric is wrong, by its values in the first and in the last WINDOW steps. A level needs no first ones."""


class Alert(NamedTuple):
    """text  what was seen, with its numbers
    page  name of a page of docs/symptoms
    """

    text: str
    page: str


@dataclass(frozen=True)
class Rule:
    """`says` completes "METRIC ..."."""

    metric: str
    says: str
    page: str
    test: Test
    compares: bool = True

    def alert(self, rows: Sequence[dict[str, float]]) -> Alert | None:
        values = [row[self.metric] for row in rows if self.metric in row]
        first, last = values[:WINDOW], values[-WINDOW:]
        if len(values) < WINDOW * (1 + self.compares) or not self.test(first, last):
            return None
        before = f", {fmean(first):.4g} over the first {WINDOW}" if self.compares else ""
        seen = f"mean {fmean(last):.4g} over the last {WINDOW} steps{before}"
        return Alert(f"{self.metric} {self.says}: {seen}", self.page)


def flat(first: Values, last: Values) -> bool:
    """Not higher by more than two standard errors of the difference."""
    noise = ((variance(first) + variance(last)) / WINDOW) ** 0.5
    return fmean(last) - fmean(first) <= 2 * noise


def by(least: float) -> Test:
    return lambda first, last: fmean(last) - fmean(first) >= least


def times(factor: float) -> Test:
    return lambda first, last: fmean(last) >= factor * fmean(first) > 0


def above(level: float) -> Test:
    return lambda _, last: fmean(last) > level


def below(level: float) -> Test:
    return lambda _, last: fmean(last) < level


# The levels are far from what the runs of docs/demo and docs/smollm2 show, and near what the pages report of faults.
RULES = (
    Rule("reward", "is flat", "reward_flat", flat),
    Rule("signal_fraction", "is low: little is learned", "reward_flat", below(0.05), compares=False),
    Rule("wrong_format_fraction", "rises", "wrong_format_rises", by(0.1)),
    Rule("length", "rises", "length_explodes", times(1.5)),
    Rule("truncated_fraction", "rises", "length_explodes", by(0.2)),
    Rule("tme", "rises", "tme_grows", by(5e-4)),
    Rule("reference_kl", "is high", "reward_hacked", above(0.5), compares=False),
    Rule("infrastructure_failure_fraction", "is high", "infrastructure_failures", above(0.02), compares=False),
)


def alerts(stage: StageFolder) -> Iterator[Alert]:
    """What the rules find. A stage that learns from teachers has rewards only to be looked at."""
    rows = stage.metrics.rows()
    rewarded = isinstance(stage.config, OnPolicyStage) and stage.config.needs_reward
    for rule in RULES:
        if (rewarded or rule.page != "reward_flat") and (alert := rule.alert(rows)):
            yield alert


def symptom(page: str) -> str | None:
    """The text of a page of docs/symptoms; None in a wheel, which has no docs."""
    path = SYMPTOMS / f"{page}.md"
    return path.read_text() if path.exists() else None
