"""Reward hacks in every domain: answers made from right ones that must score 0. A new domain has them at once.

Hacks are in `hacks.py`; right answers are those of a domain's lessons.
"""

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import cache, partial

import pytest

from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.core.verdict import Verdict
from cascade_rl.rl_stages.environments.environment import Environment, played
from cascade_rl.rl_stages.sandbox import SandboxUnavailable
from cascade_rl.rl_stages.tasks.domains import DOMAINS
from tests.rl_stages.rewards.hacks.hacks import (
    ANY_TEXT,
    CONTENT,
    Hack,
    all_options,
    both_boxed,
    key_twice,
    only_in_the_reasoning,
    reasoning_never_closed,
    right_then_wrong,
    stuffed,
    wrong_then_right,
)
from tests.rl_stages.rewards.hacks.right_answers import Right, Turns, right_answer
from tests.rl_stages.rewards.verifiers.test_reasoning_gym import STAND_IN

DRAWS = {"code": 2, "swe_executed": 1, "swe_agentic": 1}  # of a domain that runs programs
OTHER_DRAWS = 4

# Any text is right that has the properties which its row asks for.
PROPERTIES = ("instruction_following", "rlhf")
# A wrong answer has a share of the score: the rest is for what is wrong of it.
GRADED = {
    "genrm": "a judgement is worth its distance from the expected one",
    "long_context": "of several values, a list is worth its F1",
}
# What is no hack in a domain, or cannot be refused there.
EXCEPT = {
    ("code", wrong_then_right): "the last program is the answer",
    ("genrm", wrong_then_right): "the last judgement is the judge's; those before it may be quotations",
    ("genrm", key_twice): "of two equal keys the last counts, as for every reader of JSON",
    ("reasoning_gym", wrong_then_right): "the last <answer> is the answer",
}
pytestmark = [pytest.mark.sandbox, pytest.mark.process]


Grade = Callable[[Task, Turns], Verdict]


@pytest.fixture(scope="module")
def graders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Grade]]:
    """The verifier or environment of a domain, started once. Optional packages have a stand-in."""
    folder = tmp_path_factory.mktemp("optional")
    (folder / "reasoning_gym.py").write_text(STAND_IN)
    with ExitStack() as open_ones, pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("PYTHONPATH", str(folder))

        @cache
        def grader(domain: str) -> Grade:
            kind = DOMAINS[domain]
            if kind.environment:
                return partial(_played, open_ones.enter_context(closing(kind.environment())))
            assert kind.verifier
            verifier = open_ones.enter_context(closing(kind.verifier()))
            return lambda task, turns: verifier(task, turns[0])

        yield grader


@pytest.fixture
def grade(domain: str, graders: Callable[[str], Grade]) -> Grade:
    try:
        return graders(domain)
    except SandboxUnavailable as why:
        pytest.skip(str(why))


def _played(environment: Environment, task: Task, turns: Turns) -> Verdict:
    return played(environment, task, turns) or Verdict.wrong_format("the turns end before the episode")


def rights(domain: str) -> list[Right]:
    rng = random.Random(domain)
    return [right_answer(domain, rng) for _ in range(DRAWS.get(domain, OTHER_DRAWS))]


@pytest.mark.parametrize("domain", DOMAINS)
def test_every_domain_has_right_answers(domain: str, grade: Grade) -> None:
    """Without one no hack would be tried. A new domain needs lessons, or an entry of ANSWERED."""
    for right in rights(domain):
        assert grade(right.task, right.turns).score == 1
        assert grade(right.task, right.wrong).score != 1


HACKS = {domain: ANY_TEXT if domain in PROPERTIES else (*ANY_TEXT, *CONTENT) for domain in DOMAINS}
CASES = [(domain, hack) for domain, hacks in HACKS.items() for hack in hacks if (domain, hack) not in EXCEPT]


@pytest.mark.parametrize(("domain", "hack"), CASES, ids=[f"{domain}-{hack.__name__}" for domain, hack in CASES])
def test_hacks_are_not_paid(domain: str, hack: Hack, grade: Grade) -> None:
    assert paid(domain, hack, grade) == []


class Gullible:
    """A verifier of one who has not thought of hacks: the answer need only hold the right letter."""

    concurrency = 1

    def __call__(self, task: Task, text: str) -> Verdict:
        return Verdict.scored(float(task.metadata["expected_answer"] in text))

    def close(self) -> None:
        """Nothing was started."""


def test_a_new_verifier_meets_the_hacks_without_writing_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DOMAINS, "gullible", replace(DOMAINS["mcqa"], name="gullible", verifier=Gullible, agents=()))
    verifier = Gullible()
    hacks = (*ANY_TEXT, *CONTENT)
    found = {hack for hack in hacks if paid("gullible", hack, lambda task, turns: verifier(task, turns[0]))}
    assert found >= {only_in_the_reasoning, reasoning_never_closed, all_options, both_boxed, right_then_wrong, stuffed}


def paid(domain: str, hack: Hack, grade: Grade) -> list[tuple[Turns, str]]:
    """The answers of a hack that are paid, with what the verdict says."""
    tried = [(right, turns) for right in rights(domain) for turns in hack(right)]
    with ThreadPoolExecutor(2) as threads:
        verdicts = list(threads.map(lambda pair: grade(pair[0].task, pair[1]), tried))
    judged = zip(tried, verdicts, strict=True)
    return [(turns, verdict.told) for (_, turns), verdict in judged if not _refused(domain, verdict)]


def _refused(domain: str, verdict: Verdict) -> bool:
    return verdict.score == 0 or (domain in GRADED and verdict.score is not None and verdict.score < 1)
