"""The marker of a test says what it starts. It is found from the names that its code reaches, so nobody forgets it.

Searched is the code of the test, of its fixtures, and of what these call in `tests`, but not the product's. A test that
starts a process by a name that is not in STARTS has a marker of its own, such as `pytest.mark.process`, or it fails.
"""

import sys
from collections.abc import Iterable, Iterator
from inspect import unwrap
from types import CodeType, FunctionType
from typing import Any

import pytest

# By the name that a test uses.
STARTS = {
    "RolloutEngine": ("engine",),
    "ServedModel": ("engine",),
    "run_ranks": ("ranks",),
    "Launched": ("ranks", "engine"),
    "NEMO_RUN": ("process",),
    "subprocess": ("process",),
    "fork": ("process",),
    "Sandbox": ("sandbox",),
    "CodeVerifier": ("sandbox",),
    "BradleyTerryScorer": ("process",),
    "DeadlineCheck": ("process",),
    "MathVerifier": ("process",),
    "StructuredOutputVerifier": ("process",),
    "virtual_slurm": ("slurm",),
    "sync_playwright": ("browser",),
}
# With this in the place of EngineProcess a RolloutEngine starts none.
STAND_IN = "ScriptedServer"
MARKERS = ("engine", "ranks", "sandbox", "slurm", "browser", "process", "slow")
EVENTS = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "os.exec")

_started: list[str] = []
sys.addaudithook(lambda event, arguments: _started.append(f"{event}{arguments[:2]}") if event in EVENTS else None)


def mark(item: pytest.Function) -> None:
    """Adds the markers of what the test starts, or `pure` where it has none."""
    names = set(_names([item.obj, *_fixtures(item), *_parameters(item)]))
    if STAND_IN in names:
        names.discard("RolloutEngine")
    for marker in sorted({marker for name in STARTS.keys() & names for marker in STARTS[name]}):
        item.add_marker(marker)
    if not any(map(item.get_closest_marker, (*MARKERS, "long"))):
        item.add_marker("pure")


def forget_what_was_started() -> None:
    _started.clear()


def check_what_was_started(item: pytest.Function) -> None:
    """Fails a test that is `pure` and has started a process, whoever did it."""
    if item.get_closest_marker("pure") and _started:
        pytest.fail(
            f"expected a test without a marker to start no process, found {_started}: "
            f"mark it with one of {', '.join(MARKERS)}, or add the name that starts it to STARTS of tests/tiers.py",
            pytrace=False,
        )


def _fixtures(item: pytest.Function) -> Iterator[Any]:
    return (definitions[-1].func for definitions in item._fixtureinfo.name2fixturedefs.values())


def _parameters(item: pytest.Function) -> Iterable[Any]:
    return item.callspec.params.values() if hasattr(item, "callspec") else ()


def _names(reached: list[Any]) -> Iterator[str]:
    """Names of variables and attributes in the code of functions and classes of `tests`, as far as they lead."""
    seen: set[int] = set()
    while reached:
        thing = unwrap(reached.pop())
        if id(thing) in seen or not str(getattr(thing, "__module__", "")).startswith("tests."):
            continue
        seen.add(id(thing))
        if isinstance(thing, type):
            reached += vars(thing).values()
        elif isinstance(thing, FunctionType):
            for name in _names_in(thing.__code__):
                yield name
                if name in thing.__globals__:
                    reached.append(thing.__globals__[name])


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)
