"""One repair as rows of a domain, with its prompt and the files that it shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.environments.swe_agent import SCHEMAS
from cascade_rl.rl_stages.rewards.swe.exam import Exam
from cascade_rl.rl_stages.rewards.swe.instance import Instance, parse_instance
from cascade_rl.rl_stages.rewards.swe.other_copies import require_hideable
from cascade_rl.rl_stages.swe_tasks.localisation import Localisation, golden_files, retrieved_files
from cascade_rl.rl_stages.swe_tasks.repair_prompt import agent_prompt, repair_prompt

Row = dict[str, Any]
DOMAINS = ("swe_executed", "swe_agentless", "swe_agentic")
TOOLS = [{"type": "function", "name": name, "parameters": dict(schema)} for name, schema in SCHEMAS.items()]


def task_rows(domain: str, fields: Row, second: Localisation = retrieved_files) -> Iterator[Row]:
    """NeMo-Gym rows of an executed SWE row's fields (rewards/swe/instance.py).

    swe_executed   a row with the golden localisation, the files that the golden patch changes
    swe_agentless  a row with the golden localisation, and one with the files of `second`, if it has any
    swe_agentic    a row with only the issue, and the tools

    UserError on another domain, on a golden patch that changes anything but existing source files, and, unless no box
    runs, on a repository that pytest needs and on tests that a patch can pass without knowing a value.
    """
    if domain not in DOMAINS:
        raise UserError(f"expected a domain among {', '.join(DOMAINS)}; found {domain!r}")
    fields = parse_instance(fields)
    instance = Instance.of(fields)
    golden = golden_files(instance)
    if domain != "swe_agentless":
        require_hideable(instance.repository)
        _require_a_hidden_value(instance)
    if domain == "swe_agentic":
        yield _row(domain, agent_prompt(instance.problem_statement), fields, tools=TOOLS)
    elif domain == "swe_executed":
        yield _row(domain, repair_prompt(instance.problem_statement, golden), fields)
    else:
        for shown in filter(None, (golden, second(instance))):
            repair = {"instance_id": instance.id, "files": shown, "gold_patch": instance.gold_patch}
            yield _row(domain, repair_prompt(instance.problem_statement, shown), repair)


def _require_a_hidden_value(instance: Instance) -> None:
    if not Exam(instance).hides_a_value(instance.problem_statement):
        raise UserError(
            "expected a test that fails before the repair to compare a result with a value that the problem's "
            "statement does not tell, so that no patch can report outcomes of its own; found none: leave it out"
        )


def _row(domain: str, prompt: str, fields: Row, **parameters: Any) -> Row:
    asked = {"input": [{"role": "user", "content": prompt}], **parameters}
    return {"responses_create_params": asked, "agent_ref": {"name": domain}, **fields}
