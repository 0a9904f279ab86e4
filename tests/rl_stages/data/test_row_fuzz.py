"""Mutated rows of every format: a task, or a UserError with file and line; nothing else, and nothing made up.

CASCADE_FUZZ_ROWS=10000 for as many of each format; without it a few hundred, which CI can afford.
"""

import json
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.data.rows import parse_line
from cascade_rl.rl_stages.tasks.demonstration import parse_demonstration
from cascade_rl.rl_stages.tasks.load_tasks import parse_task, split_of
from tests.rl_stages.tasks.test_domains import GYM_ROWS, PAY

COUNT = int(os.environ.get("CASCADE_FUZZ_ROWS", "300"))
HISTORY = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Pay Ann.", "type": "message"},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "I pay."}]},
    {"type": "function_call", "call_id": "a", "name": "pay", "arguments": '{"to": "Ann"}'},
    {"type": "function_call_output", "call_id": "a", "output": "done"},
    {"role": "assistant", "content": [{"type": "output_text", "text": "Paid."}]},
    {"role": "user", "content": "And Bob?"},
]
CHAT = [
    {"role": "user", "content": "Pay Ann."},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "function": {"name": "pay", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "a", "content": "done"},
    {"role": "assistant", "content": "<think>so</think>Paid.", "reasoning_content": None},
]
JUNK: list[Any] = [
    None, True, False, 0, -1, 1.5, 10**30, "", " ", "x", "</think>", "<think>", "{", "[]", "a\u0000b", "\ud800",
    [], {}, [[]], [None], {"": None}, {"a": {"b": []}}, ["x"] * 3, float("nan"), "9" * 5000, [[[[[[[[{}]]]]]]]],
]  # fmt: skip


def formats() -> dict[str, Any]:
    rows: dict[str, Any] = {"demonstration": {"messages": CHAT, "tools": [PAY]}}
    for agent, (fields, *_) in GYM_ROWS.items():
        params = {"input": HISTORY, "tools": [PAY]}
        rows[agent] = {"responses_create_params": params, "agent_ref": {"name": agent}} | fields
    rows["mcqa_simple_agent"] |= {"grading_mode": "lenient_boxed", "template_metadata": {"output_regex": [r"so (\w)"]}}
    rows["structured_outputs_v3_simple_agent"] |= {"response_mode": "text"}
    rows["instruction_following_simple_agent"] |= {"grading_mode": "fraction", "reading": "loose"}
    return rows


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container with every key of it."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(items):
        yield value, key
        yield from places(item)


def copy(value: Any) -> Any:
    return json.loads(json.dumps(value))


def said(text: str, row_texts: list[str]) -> bool:
    """Whether the text is in the row, as a part of one text or as several of them."""
    if any(text in other for other in row_texts):
        return True
    for other in sorted(row_texts, key=len, reverse=True):
        text = text.replace(other, "") if other else text
    return not text


def mutate(row: Any, rng: random.Random) -> bytes:
    row = copy(row)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        owner, key = rng.choice(list(places(row)))
        match rng.randrange(5):
            case 0:
                del owner[key]
            case 1:
                owner[key] = copy(rng.choice([*JUNK, *(parent[name] for parent, name in places(row))]))
            case 2 if isinstance(owner, list):
                owner.insert(rng.randrange(len(owner) + 1), copy(owner[key]))
            case 3 if isinstance(owner, dict):
                owner[rng.choice(("name", "type", "role", "Role", "x" * 40))] = owner.pop(key)
            case _:
                owner[key] = [owner[key]] if rng.random() < 0.5 else {"a": owner[key]}
        if not list(places(row)):
            break
    line = bytearray(json.dumps(row).encode())
    if rng.random() < 0.2:
        at = rng.randrange(len(line))
        line[at : at + rng.choice((0, 1, 1, 20))] = bytes(rng.choices(range(256), k=rng.choice((0, 1, 1, 3))))
    return bytes(line).replace(b"\n", b" ")


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from texts(item)


@pytest.mark.parametrize("name", formats())
def test_a_mutated_row_is_a_task_or_an_error_with_its_place(name: str) -> None:
    rng = random.Random(name)
    row = formats()[name]
    parse = parse_demonstration if name == "demonstration" else lambda *found: parse_task(*found, "task")
    assert parse(parse_line(json.dumps(row).encode(), "rows.jsonl:1"), "rows.jsonl:1")
    outcomes = {"task": 0, "error": 0}
    for number in range(COUNT):
        line, where = mutate(row, rng), f"rows.jsonl:{number + 1}"
        try:
            found = parse_line(line, where)
            parsed = parse(found, where)
        except UserError as error:
            assert str(error).startswith(f"{where}: ") and len(str(error)) > len(where) + 20, line
            outcomes["error"] += 1
            continue
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}: {error}: {line.decode(errors='replace')[:3000]}") from error
        outcomes["task"] += 1
        split_of(parsed.messages)
        row_texts = list(texts(found))
        for message in parsed.messages:  # what is in a task is in its row
            names = [call["function"]["name"] for call in message.get("tool_calls", ())]
            for text in (message["content"], message.get("reasoning_content", ""), *names):
                assert not text or said(text, row_texts), line
    assert min(outcomes.values()) > COUNT // 20, outcomes
