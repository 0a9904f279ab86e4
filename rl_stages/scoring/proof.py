"""Graders prove themselves before a stage starts, on every node and in the sandbox that they found there.

A box that runs no test grades every patch 0, the golden one too, and nothing else shows it: rewards of 0 look like a
policy that cannot do the task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

from cascade_rl.engine.cluster.node import Node, NodeLost
from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.core.exemplar import Exemplar, RunsOnNodes
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.core.verdict import GroupVerifier, Verdict
from cascade_rl.rl_stages.environments.environment import Environment, played
from cascade_rl.rl_stages.sandbox import CompilerUnavailable, SandboxFailure, Tier
from cascade_rl.rl_stages.tasks.domains import domain_named
from cascade_rl.rl_stages.tasks.load_tasks import read_tasks
from cascade_rl.rl_stages.tasks.row_form import RowForm

if TYPE_CHECKING:
    from cascade_rl.rl_stages.scoring.episodes import Episodes
    from cascade_rl.rl_stages.scoring.judge import Judge

MOST_AT_ONCE = 32

Grade = Callable[[Task, Sequence[str]], Verdict]


class UnprovenGrader(UserError):
    """A grader gives a golden answer no 1, or an empty one no 0. A restart would not change that."""


@dataclass(frozen=True)
class Place:
    """A node with the tier of its sandbox."""

    node: Node
    tier: Tier

    def __str__(self) -> str:
        return f"node {self.node.host} (sandbox tier: {self.tier})"


@dataclass(frozen=True)
class Trial:
    """The verdicts on the golden and on the empty answer of an instance."""

    name: str
    golden: Verdict
    empty: Verdict

    @property
    def proves(self) -> bool:
        return (self.golden.score, self.empty.score) == (1.0, 0.0)

    def __str__(self) -> str:
        return f"{self.name}: golden {self.golden.told}; empty {self.empty.told}"


@dataclass(frozen=True)
class Proof:
    """The trials of one grader of a domain, up to the first that proves it."""

    domain: str
    place: Place
    trials: Sequence[Trial]

    @property
    def holds(self) -> bool:
        return self.trials[-1].proves

    @property
    def failed(self) -> Sequence[Trial]:
        return [trial for trial in self.trials if not trial.proves]

    def refusal(self) -> str:
        """What was expected, what was found and what to change."""
        found = " | ".join(map(str, self.trials))
        return (
            f"{self.domain} on {self.place}: expected score 1 for the golden answer of an instance and 0 for an empty "
            f"one; found {found}. Run `cascade doctor` on that node and repair what it reports. Where it reports "
            "nothing, the data is at fault: remove these instances from it"
        )


@dataclass(frozen=True)
class Prover:
    """Proves the graders that a stage's judge and its episodes have, on `places`, the nodes of the job."""

    judge: Judge
    episodes: Episodes
    places: Sequence[Place]

    def prove(self, domain: str, sources: Mapping[str, RowForm]) -> list[Proof]:
        """Proofs of the domain's graders on all nodes; none if the sources have no row of it."""
        make = domain_named(domain).exemplars
        assert make
        candidates = [exemplars for exemplars in make(rows_of(domain, sources)) if exemplars]
        if not candidates:
            return []
        self._grade_on(domain, self.places[0])  # so that the threads find it made

        def proof(case: tuple[Sequence[Exemplar], Place]) -> Proof:
            exemplars, place = case
            return Proof(domain, place, _trials(self._grade_on(domain, place), exemplars))

        with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
            return list(pool.map(proof, product(candidates, self.places)))

    def _grade_on(self, domain: str, place: Place) -> Grade:
        """What the domain's verifier or environment says on that node."""
        if host := self.episodes.host(domain):
            assert isinstance(host.environment, RunsOnNodes)
            return partial(_played, host.environment.on(place.node))
        verifier = self.judge.verifier(domain)
        assert isinstance(verifier, RunsOnNodes) and not isinstance(verifier, GroupVerifier)
        single = verifier.on(place.node)
        return lambda task, turns: single(task, turns[0])


def rows_of(domain: str, sources: Mapping[str, RowForm]) -> Iterator[Task]:
    """The tasks of the domain, as their sources have them, read only as far as they are taken."""
    name = domain_named(domain).name
    return (task for source, form in sources.items() for task in read_tasks(source, form) if task.domain == name)


def _trials(grade: Grade, candidates: Sequence[Exemplar]) -> list[Trial]:
    trials: list[Trial] = []
    with ThreadPoolExecutor(2) as pool:
        for one in candidates:
            golden, empty = pool.map(partial(_verdict, grade, one.task), (one.golden, one.empty))
            trials.append(Trial(one.name, golden, empty))
            if trials[-1].proves:
                break
    return trials


def _verdict(grade: Grade, task: Task, turns: Sequence[str]) -> Verdict:
    """What the machine cannot do is an infrastructure failure."""
    try:
        return grade(task, turns)
    except (SandboxFailure, CompilerUnavailable, NodeLost, OSError) as failure:
        return Verdict.infrastructure_failure(str(failure))


def _played(environment: Environment, task: Task, turns: Sequence[str]) -> Verdict:
    return played(environment, task, turns) or Verdict.infrastructure_failure("the episode did not end")
