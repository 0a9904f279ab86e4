"""The domains of the RL stages: for each, how its rows are checked, scored and generated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from cascade_rl.engine.errors import UserError
from cascade_rl.rl_stages.prompts import instruction_following as instruction_following_prompts
from cascade_rl.rl_stages.prompts import math as math_prompts
from cascade_rl.rl_stages.prompts.lesson import Lesson
from cascade_rl.rl_stages.verdict import Verifier
from cascade_rl.rl_stages.verifiers import instruction_following, math


@dataclass(frozen=True)
class Domain:
    """One kind of task.

    parse_row  a row's verifier fields, checked (UserError otherwise)
    verifier   makes a verifier; the caller closes it
    lessons    every prompt that `generate:<name>` can make, in a fixed order
    """

    name: str
    parse_row: Callable[[Mapping[str, Any]], dict[str, Any]]
    verifier: Callable[[], Verifier]
    lessons: Callable[[], Iterator[Lesson]]


DOMAINS = {
    domain.name: domain
    for domain in (
        Domain(
            "instruction_following",
            instruction_following.parse_row,
            instruction_following.InstructionFollowingVerifier,
            instruction_following_prompts.lessons,
        ),
        Domain("math", math.parse_row, math.MathVerifier, math_prompts.lessons),
    )
}


def domain_named(name: str) -> Domain:
    """UserError, with the nearest known name, on an unknown one."""
    if name not in DOMAINS:
        near = get_close_matches(name, DOMAINS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UserError(f"expected a domain among {', '.join(sorted(DOMAINS))}; found {name!r}{hint}")
    return DOMAINS[name]
