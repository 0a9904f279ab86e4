"""The rollouts that a wheel of NeMo-Gym has recorded with rewards, for the servers whose rules a domain here has."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any

from cascade_rl.launchers.verify.published.case import Case

# The end of a server's or an environment's name -> our domain. Servers of agents for mathematics end in `_math`.
DOMAINS = {
    "mcqa": "mcqa",
    "gpqa_diamond": "mcqa",
    "instruction_following": "instruction_following",
    "ifbench": "instruction_following",
    "structured_outputs": "structured_output",
    "single_step_tool_use_with_argument_comparison": "tool_call",
    "code_gen": "code",
    "math_with_judge": "math",
    "math_with_autograder": "math",
    "polymath": "math",
    "_math": "math",
    "reasoning_gym": "reasoning_gym",
    "workplace_assistant": "workplace",
}
Item = Mapping[str, Any]


def cases(folder: Path) -> Iterator[Case]:
    """Each rollout once; some servers ship the files of another."""
    seen: set[bytes] = set()
    for path in sorted(folder.glob("*/*/data/*rollouts*.jsonl")):
        domain = domain_of(path.parents[1].name)
        content = path.read_bytes()
        if domain and has_rules(domain) and content not in seen:
            seen.add(content)
            yield from _of_file(path, domain)


def domain_of(server: str) -> str | None:
    return next((domain for end, domain in DOMAINS.items() if server == end or server.endswith(end)), None)


def has_rules(domain: str | None) -> bool:
    """Whether there are rules for a server; those of reasoning-gym are a package that need not be here."""
    return domain is not None and (domain != "reasoning_gym" or find_spec("reasoning_gym") is not None)


def _of_file(path: Path, domain: str) -> Iterator[Case]:
    examples = sorted(path.parent.glob("*example*.jsonl"))
    given = {prompt_of(row): row for file in examples for row in rows_of(file, "reward")}
    for number, rollout in enumerate(row for row in rows_of(path) if "reward" in row):
        row = given.get(prompt_of(rollout), {}) | rollout | {"agent_ref": {"name": domain}}
        turns = said_in(rollout["response"]["output"], domain)
        name = f"{path.stem.removeprefix('example_rollouts')}{number}"
        yield Case(path.parents[1].name, name, row, turns, rollout.get("library_reward", rollout["reward"]))


def said_in(output: list[Item], domain: str | None) -> tuple[str, ...]:
    return turns_of(output) if domain == "workplace" else (text_of(output),)


def turns_of(output: list[Item]) -> tuple[str, ...]:
    """What the model says between the outputs of its calls."""
    turns = groupby(output, key=lambda item: item["type"] == "function_call_output")
    return tuple(text_of(list(turn)) for shown, turn in turns if not shown)


def text_of(output: list[Item]) -> str:
    """An output of OpenAI's Responses API as the text that a model would have sampled."""
    return "".join(map(_said, output))


def _said(item: Item) -> str:
    if item["type"] == "reasoning":
        return "<think>" + "".join(part["text"] for part in item["summary"]) + "</think>"
    if item["type"] == "function_call":
        called = f'"name": {json.dumps(item["name"])}, "arguments": {item["arguments"]}'  # the latter as it was written
        return f"<tool_call>{{{called}}}</tool_call>"
    return "".join(part.get("text", "") for part in item.get("content") or ())


def prompt_of(row: Item) -> str:
    """What the model was given: text, whatever else Gym has put around it since."""
    messages = row["responses_create_params"]["input"]
    return "\n".join(str(m.get("content")) for m in messages) if isinstance(messages, list) else str(messages)


def rows_of(path: Path, but: str = "") -> list[dict[str, Any]]:
    """Those without the key `but`. A file of a wheel may be a pointer to another place."""
    lines = [line for line in path.read_text().splitlines() if line.startswith("{")]
    return [row for row in map(json.loads, lines) if but not in row]
