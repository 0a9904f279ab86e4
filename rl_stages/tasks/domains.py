"""The domains of the RL stages: for each, how its rows are checked, scored and generated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from typing import Any

from cascade_rl.engine.cluster.node import Node
from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.user_modules import imported
from cascade_rl.rl_stages.config.reward_model import RewardModel
from cascade_rl.rl_stages.core.exemplar import Exemplar
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.core.verdict import GroupVerifier, Verifier
from cascade_rl.rl_stages.environments import python_tool, swe_agent, swe_agent_exemplars, workplace
from cascade_rl.rl_stages.environments.environment import Environment
from cascade_rl.rl_stages.lessons import code as code_prompts
from cascade_rl.rl_stages.lessons import instruction_following as instruction_following_prompts
from cascade_rl.rl_stages.lessons import long_context as long_context_prompts
from cascade_rl.rl_stages.lessons import math as math_prompts
from cascade_rl.rl_stages.lessons import math_python as math_python_prompts
from cascade_rl.rl_stages.lessons import mcqa as mcqa_prompts
from cascade_rl.rl_stages.lessons import rlhf as rlhf_prompts
from cascade_rl.rl_stages.lessons import structured_output as structured_output_prompts
from cascade_rl.rl_stages.lessons import swe_agent as swe_agent_prompts
from cascade_rl.rl_stages.lessons import swe_agentless as swe_agentless_prompts
from cascade_rl.rl_stages.lessons import swe_executed as swe_executed_prompts
from cascade_rl.rl_stages.lessons import workplace as workplace_prompts
from cascade_rl.rl_stages.lessons.lesson import Lesson
from cascade_rl.rl_stages.rewards.adapters import ADAPTERS
from cascade_rl.rl_stages.rewards.reward_models.judge_client import JudgeModel
from cascade_rl.rl_stages.rewards.swe import exemplars as swe_exemplars
from cascade_rl.rl_stages.rewards.swe import instance
from cascade_rl.rl_stages.rewards.verifiers import math, mcqa, reasoning_gym, swe_agentless, swe_executed
from cascade_rl.rl_stages.rewards.verifiers.instructions import instruction_following
from cascade_rl.rl_stages.rewards.verifiers.judged import genrm, long_context, rlhf
from cascade_rl.rl_stages.rewards.verifiers.programs import code, code_exemplars, code_rows
from cascade_rl.rl_stages.rewards.verifiers.structured import structured_output, tool_call


@dataclass(frozen=True)
class Domain:
    """One kind of task.

    parse_row  checks and returns a row's verifier fields; raises UserError
    verifier   makes a verifier of single answers; the caller closes it. None if an environment judges the episodes
    lessons    every prompt that `generate:<name>` can make, in a fixed order; None if there is no generator
    agents     the NeMo-Gym agents whose released rows belong to this domain
    environment   makes the environment of a multi-turn domain; the caller closes it
    judged     makes the verifier of a stage with a reward model; the caller closes it, and it closes the judge
    needs_judge  whether answers to a row with these fields have no score, or none of their own, without one
    exemplars  answers with known scores, made from tasks of a stage, for a verifier or environment that runs untrusted
               code: a sequence for each of its graders, which are proven by one of them. Such a verifier or environment
               takes `others`, nodes on which it runs the code too
    """

    name: str
    parse_row: Callable[[Mapping[str, Any]], dict[str, Any]]
    verifier: Callable[..., Verifier] | None
    lessons: Callable[[], Iterator[Lesson]] | None = None
    agents: tuple[str, ...] = ()
    environment: Callable[..., Environment] | None = None
    judged: Callable[[JudgeModel, RewardModel, int], Verifier | GroupVerifier] | None = None
    needs_judge: Callable[[Mapping[str, Any]], bool] = lambda _: False
    exemplars: Callable[[Iterable[Task]], Sequence[Sequence[Exemplar]]] | None = None

    def on_nodes(self, others: Sequence[Node]) -> Domain:
        """This domain with its verifier and environment also running on these nodes, if they can."""
        if self.exemplars is None:
            return self
        verifier, environment = self.verifier, self.environment
        return replace(
            self,
            verifier=verifier and partial(verifier, others=others),
            environment=environment and partial(environment, others=others),
        )


DOMAINS = {
    domain.name: domain
    for domain in (
        Domain(
            "code",
            code_rows.parse_row,
            code.CodeVerifier,
            code_prompts.lessons,
            ("code_gen_simple_agent",),
            exemplars=code_exemplars.exemplars,
        ),
        Domain(
            "instruction_following",
            instruction_following.parse_row,
            instruction_following.InstructionFollowingVerifier,
            instruction_following_prompts.lessons,
            ("instruction_following_simple_agent",),
        ),
        Domain("math", math.parse_row, math.MathVerifier, math_prompts.lessons, ("math_with_judge_simple_agent",)),
        Domain(
            "math_python",
            math.parse_row,
            None,
            math_python_prompts.lessons,
            environment=partial(python_tool.PythonTool, math.MathVerifier),
            exemplars=python_tool.exemplars,
        ),
        Domain("genrm", genrm.parse_row, genrm.JudgementVerifier, rlhf_prompts.judgements),
        Domain(
            "long_context",
            long_context.parse_row,
            long_context.LongContextVerifier,
            long_context_prompts.lessons,
            judged=lambda judge, model, _: long_context.LongContextVerifier(judge, model.max_tokens),
            needs_judge=long_context.needs_judge,
        ),
        Domain(
            "reasoning_gym",
            reasoning_gym.parse_row,
            reasoning_gym.ReasoningGymVerifier,
            agents=("reasoning_gym_simple_agent",),
        ),
        Domain(
            "rlhf",
            rlhf.parse_row,
            rlhf.HeldoutVerifier,
            rlhf_prompts.lessons,
            ("genrm_simple_agent",),
            judged=rlhf.RankingVerifier,
            needs_judge=rlhf.needs_judge,
        ),
        Domain("mcqa", mcqa.parse_row, mcqa.MultipleChoiceVerifier, mcqa_prompts.lessons, ("mcqa_simple_agent",)),
        Domain(
            "structured_output",
            structured_output.parse_row,
            structured_output.StructuredOutputVerifier,
            structured_output_prompts.lessons,
            (
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
        Domain(
            "workplace",
            workplace.parse_row,
            None,
            workplace_prompts.lessons,
            ("workplace_assistant_simple_agent",),
            environment=workplace.Workplace,
        ),
        Domain(
            "swe_agentless",
            swe_agentless.parse_row,
            swe_agentless.SweAgentlessVerifier,
            swe_agentless_prompts.lessons,
            judged=lambda judge, model, _: swe_agentless.SweAgentlessVerifier(judge, model.max_tokens),
        ),
        Domain(
            "swe_executed",
            instance.parse_instance,
            swe_executed.SweExecutedVerifier,
            swe_executed_prompts.lessons,
            exemplars=swe_exemplars.exemplars,
        ),
        Domain(
            "swe_agentic",
            instance.parse_instance,
            None,
            swe_agent_prompts.lessons,
            environment=swe_agent.SweAgent,
            exemplars=swe_agent_exemplars.exemplars,
        ),
    )
}


OWN = "python-domain"


def domain_named(name: str) -> Domain:
    """The domain with that name, or with that agent, or the one that an adapter makes of `kind:target`, or the user's
    own, `python-domain:MODULE:NAME`.

    Raises UserError for an unknown name, with the nearest known one, and for a target that its adapter cannot reach.
    """
    kind, _, target = name.partition(":")
    if kind == OWN:
        return _own(name, target)
    if is_third_party(name):
        ADAPTERS[kind].check(target)
        return Domain(name, dict, partial(ADAPTERS[kind].verifier, target))
    for domain in DOMAINS.values():
        if name == domain.name or name in domain.agents:
            return domain
    near = get_close_matches(name, DOMAINS, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise UserError(f"expected a domain among {', '.join(sorted(DOMAINS))}; found {name!r}{hint}")


def is_third_party(name: str) -> bool:
    """Whether the name is that of somebody else's reward, `kind:target`, which imports code or asks a server."""
    return name.partition(":")[0] in (*ADAPTERS, OWN) and ":" in name


def _own(name: str, target: str) -> Domain:
    found = imported(target, name)
    if not isinstance(found, Domain):
        raise UserError(f"{name}: expected a Domain (rl_stages/tasks/domains.py); found {found!r}")
    return replace(found, name=name)


def rules_of(name: str, asked: str) -> Callable[[], Verifier]:
    """The maker of a domain's verifier. Raises UserError, prefixed with `asked`, if an environment judges instead."""
    verifier = domain_named(name).verifier
    if verifier is None:
        raise UserError(
            f"{asked}: expected a domain whose verifier scores single answers; found {name!r}, whose episodes its "
            "environment judges. Choose another domain"
        )
    return verifier


def lessons_of(name: str) -> Iterator[Lesson]:
    """The generated prompts of a domain. Raises UserError for an unknown domain and for one without a generator."""
    domain = domain_named(name)
    if domain.lessons is None:
        known = ", ".join(domain.name for domain in DOMAINS.values() if domain.lessons)
        raise UserError(f"expected a domain with generated prompts ({known}) or a .jsonl file; found {name!r}")
    return domain.lessons()
