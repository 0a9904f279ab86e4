"""A benchmark: rows, and how they are answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.core.task import Task

THINKING = {"template": None, "on": True, "off": False}
"""Mode -> what a task asks of its chat template."""
MODES: dict[str, tuple[str, ...]] = {name: (name,) for name in THINKING} | {"both": ("on", "off")}


class Sampled(NamedTuple):
    """How the answers to a task are sampled: all that they depend on, besides model and task."""

    answers: int
    max_new_tokens: int
    temperature: float
    top_p: float

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Raises UserError for what `given` lacks, and for less than one answer."""
        if missing := [name for name in cls._fields if name not in given]:
            raise UserError(f"expected --{missing[0].replace('_', '-')}; found none: add it")
        sampled = cls(**{name: given[name] for name in cls._fields})
        if sampled.answers < 1:
            raise UserError(f"expected --answers of at least 1; found {sampled.answers}")
        return sampled


@dataclass(frozen=True)
class Benchmark:
    """`name` is that of its folder; "" for the rows of a command line, whose numbers are by domain.

    modes      of thinking: "on", "off" or the "template"'s own
    method     how an answer is found (launchers/evaluate/test_time/methods.py); None: it is sampled
    published  what a paper reports, by model, in percent
    """

    name: str
    tasks: Mapping[str, Task]
    sampled: Sampled
    modes: Sequence[str]
    method: str | None = None
    published: Mapping[str, float] = field(default_factory=dict)
