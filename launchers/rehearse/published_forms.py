"""A lesson in the form of its domain's published rows, with a prompt of about a given number of tokens.

The agents' names are those of the released sets. Domains that are not released as rows of NeMo-Gym have our own name.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from typing import Any

from cascade_rl.launchers.rehearse.long_text import module, prose
from cascade_rl.rl_stages.environments.small_office import TOOLS as OFFICE_TOOLS
from cascade_rl.rl_stages.lessons.lesson import Lesson, Row
from cascade_rl.rl_stages.lessons.workplace import TOOLS as USED_TOOLS
from cascade_rl.rl_stages.swe_tasks.repair_prompt import agent_prompt, repair_prompt
from cascade_rl.rl_stages.swe_tasks.retrieval import MOST_FILES
from cascade_rl.rl_stages.swe_tasks.task_rows import TOOLS as AGENT_TOOLS
from cascade_rl.rl_stages.tasks.domains import DOMAINS

TODAY = "Today's date is Thursday, 2023-11-30. Use the tools to do what you are asked."
DOCUMENTS = 5  # the blend's long-context prompts have at least so many

Messages = list[dict[str, str]]
Form = tuple[Messages, Mapping[str, Any], list[Row]]
"""The prompt, the verifier's fields, and the tools."""


def row(domain: str, lesson: Lesson, tokens: int) -> Row:
    """The row. With 0 tokens its prompt is as short as it can be."""
    messages, fields, tools = FORMS.get(domain, _behind_prose)(lesson, tokens)
    agents = DOMAINS[domain].agents
    return {
        "responses_create_params": {"input": messages, **({"tools": tools} if tools else {})},
        "agent_ref": {"type": "responses_api_agents", "name": agents[0] if agents else domain},
        **fields,
    }


def _behind_prose(lesson: Lesson, tokens: int) -> Form:
    return _asking(_after(prose(_room(tokens, lesson.prompt), lesson.prompt), lesson.prompt)), lesson.fields, []


def _without_rules(lesson: Lesson, tokens: int) -> Form:
    """HelpSteer3's prompts have nothing that a rule could check."""
    return _behind_prose(lesson, tokens)[0], {}, []


def _after_documents(lesson: Lesson, tokens: int) -> Form:
    """A question that a judge answers, behind documents without the answer and the text with it."""
    room = _room(tokens, lesson.prompt) // DOCUMENTS
    texts = [prose(room, f"{lesson.prompt}{number}") for number in range(DOCUMENTS)] if tokens else []
    documents = "".join(f"Document {number}:\n{text}\n\n" for number, text in enumerate(texts, start=1))
    question = lesson.prompt.rpartition(". ")[2]
    fields = {"long_context_kind": "qa", "question": question, "expected_answer": lesson.fields["expected_answer"]}
    return _asking(documents + lesson.prompt), fields, []


def _with_tools(lesson: Lesson, tokens: int) -> Form:
    """All tools of the office, which are what makes these prompts long, or the two that are used."""
    (table,) = lesson.fields["initial_state"]
    names = list(OFFICE_TOOLS) if tokens else USED_TOOLS[table][:2]
    bare = json.dumps([_described(name, "") for name in names])
    room = _room(tokens, bare + lesson.prompt) // len(names)
    tools = [_described(name, prose(room, name).strip()) for name in names]
    return [{"role": "system", "content": TODAY}, *_asking(lesson.prompt)], lesson.fields, tools


def _with_files(lesson: Lesson, tokens: int) -> Form:
    """The file at fault, among four others if the prompt is long."""
    issue = lesson.prompt.rpartition("\n")[2]
    golden = lesson.fields["files"]
    room = _room(tokens, repair_prompt(issue, golden)) // (MOST_FILES - 1)
    names = [f"pkg/part_{number}.py" for number in range(1, MOST_FILES)] if tokens else []
    files = [*golden.items(), *((name, module(room, f"{lesson.prompt}{name}")) for name in names)]
    random.Random(lesson.prompt).shuffle(files)
    return _asking(repair_prompt(issue, dict(files))), {**lesson.fields, "files": dict(files)}, []


def _with_repository(lesson: Lesson, tokens: int) -> Form:
    prompt = agent_prompt(lesson.prompt)
    issue = _after(prose(_room(tokens, prompt), lesson.prompt), lesson.prompt)
    return _asking(agent_prompt(issue)), {**lesson.fields, "problem_statement": issue}, AGENT_TOOLS


FORMS: Mapping[str, Callable[[Lesson, int], Form]] = {
    "rlhf": _without_rules,
    "long_context": _after_documents,
    "workplace": _with_tools,
    "swe_agentless": _with_files,
    "swe_agentic": _with_repository,
}


def _asking(prompt: str) -> Messages:
    return [{"role": "user", "content": prompt}]


def _after(text: str, prompt: str) -> str:
    return f"{text.strip()}\n\n{prompt}" if text else prompt


def _room(tokens: int, prompt: str) -> int:
    """What is left of so many tokens beside a prompt and the template."""
    return max(0, tokens - len(prompt) // 3 - 40)


def _described(name: str, description: str) -> Row:
    """A function in the flat form of NeMo-Gym's rows."""
    tool = OFFICE_TOOLS[name]
    properties = {key: {"type": "string"} for key in (*tool.required, *tool.optional)}
    parameters = {"type": "object", "properties": properties, "required": list(tool.required)}
    return {"type": "function", "name": name, "description": description, "parameters": parameters, "strict": True}
