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
from cascade_rl.rl_stages.verdict import GroupVerifier, Verifier
from cascade_rl.rl_stages.verifiers import instruction_following, math, mcqa, structured_output, tool_call


@dataclass(frozen=True)
class Domain:
    """One kind of task.

    parse_row  a row's verifier fields, checked (UserError otherwise)
    verifier   makes a verifier; the caller closes it
    lessons    every prompt that `generate:<name>` can make, in a fixed order; None when there is no generator
    agents     the NeMo-Gym agents whose rows, as released, are this domain's
    """

    name: str
    parse_row: Callable[[Mapping[str, Any]], dict[str, Any]]
    verifier: Callable[[], Verifier | GroupVerifier]
    lessons: Callable[[], Iterator[Lesson]] | None = None
    agents: tuple[str, ...] = ()


DOMAINS = {
    domain.name: domain
    for domain in (
        Domain(
            "instruction_following",
            instruction_following.parse_row,
            instruction_following.InstructionFollowingVerifier,
            instruction_following_prompts.lessons,
            ("instruction_following_simple_agent",),
        ),
        Domain("math", math.parse_row, math.MathVerifier, math_prompts.lessons, ("math_with_judge_simple_agent",)),
        Domain("mcqa", mcqa.parse_row, mcqa.MultipleChoiceVerifier, agents=("mcqa_simple_agent",)),
        Domain(
            "structured_output",
            structured_output.parse_row,
            structured_output.StructuredOutputVerifier,
            agents=(
                "structured_outputs_simple_agent",
                "structured_outputs_v3_simple_agent",
                "structured_outputs_v4_simple_agent",
            ),
        ),
        Domain(
            "tool_call",
            tool_call.parse_row,
            tool_call.ToolCallVerifier,
            agents=(
                "single_step_tool_use_with_argument_comparison_agent",
                "toolcall_schema_single_step_tool_use_with_argument_comparison_agent",
            ),
        ),
    )
}


def domain_named(name: str) -> Domain:
    """The domain of that name, or whose rows name that agent. UserError, with the nearest name, on an unknown one."""
    for domain in DOMAINS.values():
        if name == domain.name or name in domain.agents:
            return domain
    near = get_close_matches(name, DOMAINS, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise UserError(f"expected a domain among {', '.join(sorted(DOMAINS))}; found {name!r}{hint}")


def lessons_of(name: str) -> Iterator[Lesson]:
    """The generated prompts of a domain. UserError on an unknown one and on one without a generator."""
    domain = domain_named(name)
    if domain.lessons is None:
        known = ", ".join(domain.name for domain in DOMAINS.values() if domain.lessons)
        raise UserError(f"expected a domain with generated prompts ({known}) or a .jsonl file; found {name!r}")
    return domain.lessons()
