"""The methods by name, with the papers' numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from cascade_rl.engine.core.errors import UserError
from cascade_rl.launchers.evaluate.test_time.compare import compare
from cascade_rl.launchers.evaluate.test_time.proofs import proofs
from cascade_rl.launchers.evaluate.test_time.refine import refine
from cascade_rl.launchers.evaluate.test_time.steps import Steps
from cascade_rl.launchers.evaluate.test_time.swe import swe
from cascade_rl.launchers.evaluate.test_time.vote import vote
from cascade_rl.rl_stages.core.task import Task

METHODS: dict[str, tuple[Callable[..., Steps], dict[str, Any]]] = {
    "vote": (vote, {"generations": 64}),
    "compare": (compare, {"generations": 16, "shown": 4}),
    "ioi": (refine, {"generations": 40, "rounds": 50, "submissions": 1, "shown": 8}),
    "icpc": (refine, {"generations": 1000, "rounds": 1, "submissions": 1000, "shown": 8}),
    "swe": (swe, {"repairs": 32, "tests": 40}),
    "proofs": (
        proofs,
        {
            "generations": 128,
            "verifications": 64,
            "kept": 32,
            "analyses": 8,
            "refinements": 4,
            "rounds": 8,
            "enough": 0.99999,
        },
    ),
}


@dataclass(frozen=True)
class Method:
    """`told` names it with all its settings."""

    told: str
    begin: Callable[[Task], Steps]

    @classmethod
    def parse(cls, text: str) -> Method:
        """`NAME` or `NAME:key=number,key=number`. Raises UserError for an unknown name, key or value."""
        name, _, given = text.partition(":")
        if name not in METHODS:
            raise UserError(f"--method: expected one of {', '.join(METHODS)}; found {name!r}")
        make, settings = METHODS[name]
        chosen = {**settings, **dict(_setting(name, settings, pair) for pair in given.split(",") if pair)}
        return cls(f"{name}:{','.join(f'{key}={value}' for key, value in chosen.items())}", partial(make, **chosen))


def _setting(name: str, settings: dict[str, Any], pair: str) -> tuple[str, Any]:
    key, _, value = pair.partition("=")
    if key not in settings:
        raise UserError(f"--method {name}: expected settings of {', '.join(settings)}; found {key!r}")
    try:
        number = type(settings[key])(value)
    except ValueError:
        raise UserError(f"--method {name}: expected {key} to be a number; found {value!r}") from None
    if number <= 0:
        raise UserError(f"--method {name}: expected {key} to be above 0; found {value}")
    return key, number
