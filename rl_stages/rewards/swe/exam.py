"""What an instance's tests must show, while the box cannot see what they expect.

The tests that fail before the repair are given to the box with their expected values sealed (seals.py). A patch that
makes the tests' process report what it likes must report these values, which it does not know.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from itertools import groupby
from threading import Lock
from typing import TYPE_CHECKING

from cascade_rl.rl_stages.rewards.swe.sealed_value import form
from cascade_rl.rl_stages.rewards.swe.seals import Expected, expected, own_name, sealed

if TYPE_CHECKING:
    from cascade_rl.rl_stages.rewards.swe.instance import Instance
    from cascade_rl.rl_stages.rewards.swe.repository import Files

_COMMON = frozenset(map(form, (None, 0, 1, -1, 2, "", b"", [], (), {}, set())))
Seals = Mapping[int, tuple[str, Expected]]
"""By number, each with the path of its module."""


@dataclass(frozen=True)
class Paper:
    """What a box is given. `tests`: text by path; replaces files of the repository."""

    tests: Files
    seals: Seals

    def wrong(self, instance: Instance, outcomes: Mapping[str, str], seen: Mapping[int, Set[str]]) -> set[str]:
        """Tests and values that are not what a repair makes of them.

        outcomes  by pytest node id
        seen      by number of a seal, the forms of what was compared with it
        """
        parameters = {number: seal.parameter for number, (_, seal) in self.seals.items() if seal.parameter}
        here = {own_name(test, parameters): outcome for test, outcome in outcomes.items()}
        found = {test for test in instance.must_pass if here.get(test) != "passed"}
        found |= {test for test in instance.fail_to_fail if here.get(test) == "passed"}
        right = {number for number, (_, seal) in self.seals.items() if seal.is_right(seen.get(number, set()))}
        return found | {value_name(number, *self.seals[number]) for number in self.seals.keys() - right}


class Exam:
    """The sealed values of an instance. `learned` is whether its golden patch has shown them."""

    def __init__(self, instance: Instance) -> None:
        self.seals: Seals = dict(enumerate(_seals(instance)))
        self.learned = False
        self.lock = Lock()
        self._unfair: set[str] = set()

    def learn(self, wrong: set[str]) -> None:
        """Leaves open what the golden patch gets wrong, for instance a value of another type that only compares equal.

        All values of a test that then does not pass stay open, since the seal of any may be why.
        """
        functions = {function_of(test) for test in wrong}
        self._unfair = wrong
        self.seals = {
            number: (path, seal)
            for number, (path, seal) in self.seals.items()
            if value_name(number, path, seal) not in wrong and f"{path}::{seal.function}" not in functions
        }
        self.learned = True

    def give_up(self) -> None:
        """Seals nothing any more, because the golden patch has no outcomes in this exam."""
        self.learn({value_name(number, *seal) for number, seal in self.seals.items()})

    def hides_a_value(self, statement: str) -> bool:
        """Whether a patch must know a value that is neither common nor in the problem's statement."""
        values = {seal.form for _, seal in self.seals.values() if seal.is_value} - _COMMON
        return any(not re.search(rf"(?<!\w){re.escape(value.strip(chr(39)))}(?!\w)", statement) for value in values)

    def excuses(self, wrong: set[str]) -> bool:
        """Whether a patch that is wrong in these must be asked again without them."""
        return not self.seals or wrong <= self._unfair

    def paper(self, tests: Files) -> Paper:
        """`tests` are those of the repository."""
        seals = {number: (path, seal.drawn()) for number, (path, seal) in self.seals.items()}
        texts = {}
        for path, numbers in groupby(seals, lambda number: seals[number][0]):
            texts[path] = sealed(tests[path], {number: seals[number][1] for number in numbers})
        return Paper(texts, seals)


def function_of(test: str) -> str:
    """A node id without its parameters."""
    return test.partition("[")[0]


def value_name(number: int, path: str, seal: Expected) -> str:
    return f"{path}::{seal.function}: value {number}"


def _seals(instance: Instance) -> Iterator[tuple[str, Expected]]:
    """Sorted by path. Where it is unknown which tests fail before the repair, all that must pass are taken as such.

    Where there are truths among them, those of all tests of the same module that must pass are sealed too, so that the
    seals do not tell which ones the repair changes.
    """
    failed = _by_path(instance.fail_to_pass or instance.must_pass)
    kept = _by_path(instance.must_pass)
    for path, functions in sorted(failed.items()):
        source = instance.repository.tests[path]
        try:
            found = expected(source, functions)
            if any(each.opposite for each in found):
                found += [each for each in expected(source, kept[path] - functions) if each.opposite]
        except (SyntaxError, ValueError, RecursionError):
            continue  # it does not parse, so it cannot pass either
        yield from ((path, each) for each in found)


def _by_path(tests: Iterable[str]) -> dict[str, set[str]]:
    """The functions of tests, without their modules, by path."""
    found: dict[str, set[str]] = defaultdict(set)
    for path, _, function in (function_of(test).partition("::") for test in tests):
        if function:
            found[path].add(function)
    return found
