"""The verdicts of today's rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, NamedTuple

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.rollouts import Outcome
from cascade_rl.launchers.verify.answers import Given
from cascade_rl.launchers.verify.matching import Pair
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.core.verdict import UNFINISHED, Verdict, Verifier
from cascade_rl.rl_stages.environments.environment import Environment, played
from cascade_rl.rl_stages.tasks.domains import domain_named, rules_of

CUT = "it was cut off"
ENDED = "the turns end before the episode does"
SAME = 1e-9  # between two equal scores

Check = Callable[[Task, Given], Verdict]


class Rescored(NamedTuple):
    task: Task
    given: Given
    verdict: Verdict

    @property
    def differs(self) -> bool:
        """Whether the answer once had another score."""
        before, now = self.given.recorded, self.verdict.score
        return before is not None and (now is None or abs(now - before) > SAME)


def rescore(pairs: Sequence[Pair]) -> list[Rescored]:
    """The verdicts, in the order given. Each domain's verifier or environment is started once."""
    verdicts: dict[int, Verdict] = {}
    for domain in dict.fromkeys(pair.task.domain for pair in pairs):
        places = [place for place, pair in enumerate(pairs) if pair.task.domain == domain]
        verdicts |= zip(places, _of_domain(domain, [pairs[place] for place in places]), strict=True)
    return [Rescored(*pair, verdicts[place]) for place, pair in enumerate(pairs)]


def _of_domain(domain: str, pairs: Sequence[Pair]) -> list[Verdict]:
    kind = domain_named(domain)
    grader: Any = (kind.environment or rules_of(domain, "ROWS"))()
    with closing(grader), ThreadPoolExecutor(grader.concurrency) as pool:
        check = _playing(grader) if kind.environment else _verifying(grader)
        return list(pool.map(lambda pair: _unfinished(pair.given) or check(*pair), pairs))


def _unfinished(given: Given) -> Verdict | None:
    """As in a stage, no rule is asked about an answer that was cut off, or never leaves its reasoning."""
    if given.cut:
        return Verdict(Outcome.TRUNCATED, 0.0, detail=CUT)
    return Verdict.wrong_format(UNFINISHED) if given.thinking else None


def _playing(environment: Environment) -> Check:
    def check(task: Task, given: Given) -> Verdict:
        return played(environment, task, given.turns) or Verdict(Outcome.TRUNCATED, 0.0, detail=ENDED)

    return check


def _verifying(verifier: Verifier) -> Check:
    def check(task: Task, given: Given) -> Verdict:
        if len(given.turns) > 1:
            turns = len(given.turns)
            raise UserError(f"{given.where}: expected one text, since {task.domain} has no turns; found {turns} texts")
        return verifier(task, given.turns[0])

    return check
