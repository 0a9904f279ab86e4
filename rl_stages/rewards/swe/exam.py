"""What an instance's tests must show, while those that count stand among look-alikes.

A paper has the tests that fail before the repair, and some others, in random order and under random names among their
look-alikes (look_alikes.py). A patch that makes the tests' process report what it likes must guess which is which.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from threading import Lock
from typing import TYPE_CHECKING

from cascade_rl.rl_stages.rewards.swe.look_alikes import Place, Variant, replaced, variants

if TYPE_CHECKING:
    from cascade_rl.rl_stages.rewards.swe.instance import Instance
    from cascade_rl.rl_stages.rewards.swe.repository import Files

LOOK_ALIKES = 8  # of a test function that alone fails before the repair; several share them
FEWEST = 3  # of each of several
OTHERS, LOOK_ALIKES_OF_OTHERS = 2, 2  # tests that pass before the repair
LOOK_ALIKE = "look-alike "  # begins the name of each

_random = random.SystemRandom()


@dataclass(frozen=True)
class Question:
    """A test function, as `path::Class::name`, in the place of which it and its look-alikes stand."""

    function: str
    place: Place
    test: Variant
    look_alikes: Mapping[str, Variant]

    @property
    def path(self) -> str:
        return self.function.partition("::")[0]

    def without(self, wrong: set[str]) -> Question | None:
        """None if the test itself is among them, or no look-alike is left."""
        left = {name: variant for name, variant in self.look_alikes.items() if name not in wrong}
        spoilt = not left or self.function in map(function_of, wrong)
        return None if spoilt else replace(self, look_alikes=left)


@dataclass(frozen=True)
class Paper:
    """One arrangement of an exam.

    tests        text by path; replaces files of the repository
    names        by function of the repository, its name here
    look_alikes  by function here, what `Exam` remembers it by
    """

    tests: Files
    names: Mapping[str, str]
    look_alikes: Mapping[str, str]

    def wrong(self, instance: Instance, outcomes: Mapping[str, str]) -> set[str]:
        """Tests and look-alikes without the outcome that a repair gives them. `outcomes` are by pytest node id."""
        found = {test for test in instance.must_pass if outcomes.get(self._here(test)) != "passed"}
        found |= {test for test in instance.fail_to_fail if outcomes.get(self._here(test)) == "passed"}
        failed = {function_of(test) for test, outcome in outcomes.items() if outcome != "passed"}
        passed = {function_of(test) for test in outcomes} - failed
        return found | {name for function, name in self.look_alikes.items() if function in passed}

    def _here(self, test: str) -> str:
        function = function_of(test)
        return self.names.get(function, function) + test[len(function) :]


class Exam:
    """The questions of an instance, chosen once. `learned` is whether the golden patch has answered them."""

    def __init__(self, instance: Instance) -> None:
        self.questions = list(_questions(instance))
        self.learned = False
        self.lock = Lock()
        self._unfair: set[str] = set()

    def learn(self, wrong: set[str]) -> None:
        """Leaves out what the golden patch gets wrong: for instance a test that depends on its own name, or a
        look-alike that passes."""
        self._unfair = wrong
        self.questions = [fair for question in self.questions if (fair := question.without(wrong))]
        self.learned = True

    def give_up(self) -> None:
        """Asks nothing any more, because the golden patch has no outcomes in this exam, for instance for its length."""
        self.learn({name for question in self.questions for name in question.look_alikes})

    def excuses(self, wrong: set[str]) -> bool:
        """Whether a patch that is wrong in these must be asked again without them."""
        return not self.questions or wrong <= self._unfair

    def right_all_the_same(self, wrong: set[str]) -> bool:
        """Whether these are only look-alikes that the golden patch passes too."""
        return all(name in self._unfair and name.startswith(LOOK_ALIKE) for name in wrong)

    def paper(self, tests: Files) -> Paper:
        """The questions in a new arrangement. `tests` are those of the repository."""
        names: dict[str, str] = {}
        look_alikes: dict[str, str] = {}
        texts: dict[str, str] = {}
        for path, questions in groupby(self.questions, lambda question: question.path):
            arranged = {question.place: _arranged(question, names, look_alikes) for question in questions}
            texts[path] = replaced(tests[path], arranged)
        return Paper(texts, names, look_alikes)


def _arranged(question: Question, names: dict[str, str], look_alikes: dict[str, str]) -> list[str]:
    """The texts of a test and its look-alikes. Their names are added to `names` and `look_alikes`."""
    texts = []
    for name, variant in {question.function: question.test, **question.look_alikes}.items():
        function = f"{question.function}_{_random.getrandbits(32):08x}"
        texts.append(variant.named(function.rpartition("::")[2]))
        if name == question.function:
            names[name] = function
        else:
            look_alikes[function] = name
    _random.shuffle(texts)
    return texts


def function_of(test: str) -> str:
    """A node id without its parameters."""
    return test.partition("[")[0]


def _questions(instance: Instance) -> Iterator[Question]:
    """Sorted by path. Where it is unknown which tests fail before the repair, all that must pass are taken as such."""
    functions = _functions(instance.fail_to_pass or instance.must_pass)
    others = sorted(_functions(instance.must_pass) - functions)
    counts = dict.fromkeys(functions, max(FEWEST, LOOK_ALIKES // max(1, len(functions))))
    counts |= dict.fromkeys(_random.sample(others, min(OTHERS, len(others))), LOOK_ALIKES_OF_OTHERS)
    for function, count in sorted(counts.items()):
        path, *scope, name = function.split("::")
        try:
            found = variants(instance.repository.tests[path], scope, name, count, _random)
        except (SyntaxError, ValueError, RecursionError):
            continue  # it does not parse, so it cannot pass either
        if found:
            place, test, others_like_it = found
            named = {f"{LOOK_ALIKE}{index} of {function}": like for index, like in enumerate(others_like_it, start=1)}
            yield Question(function, place, test, named)


def _functions(tests: Iterable[str]) -> set[str]:
    return {function_of(test) for test in tests if "::" in test}
