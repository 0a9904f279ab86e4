"""Right answers of every domain, each beside a wrong one, from what the domain has for its training: its lessons.

A domain without lessons has an entry in ANSWERED. One without either has no right answer, and `test_hacks.py` fails.
"""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from cascade_rl.launchers.rehearse import published_forms
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.lessons import workplace
from cascade_rl.rl_stages.lessons.lesson import Lesson, Message, Row
from cascade_rl.rl_stages.tasks.domains import DOMAINS, lessons_of
from cascade_rl.rl_stages.tasks.load_tasks import parse_task

Turns = tuple[str, ...]


@dataclass(frozen=True)
class Right:
    """A right answer and a wrong one, as the model's turns."""

    row: Row
    task: Task
    turns: Turns
    wrong: Turns

    @property
    def text(self) -> str:
        return self.turns[-1]

    @property
    def question(self) -> str:
        return str(self.task.messages[-1]["content"])


def right_answer(domain: str, rng: random.Random) -> Right:
    """A random one."""
    if DOMAINS[domain].lessons is None:
        return ANSWERED[domain](rng)
    lesson = rng.choice(_lessons(domain))
    row = lesson.row(domain)
    return Right(row, parse_task(row, "row", "t"), spoken(lesson.right(rng)), spoken(lesson.wrong(rng)))


@lru_cache
def _lessons(domain: str) -> Sequence[Lesson]:
    return list(lessons_of(domain))


def spoken(answer: str | list[Message]) -> Turns:
    """What the model says: a text, or its turns between the outputs of its calls."""
    if isinstance(answer, str):
        return (answer,)
    return tuple(
        turn["content"] + "".join(f"<tool_call>{json.dumps(call['function'])}</tool_call>" for call in calls)
        for turn in answer
        if turn["role"] == "assistant"
        for calls in [turn.get("tool_calls", ())]
    )


def _tool_call(rng: random.Random) -> Right:
    """The last call of an office's lesson, as a row of single calls."""
    lesson = rng.choice(list(workplace.lessons()))
    right, wrong = ([turn for turn in draw(rng) if turn.get("tool_calls")][-1] for draw in (lesson.right, lesson.wrong))
    function = right["tool_calls"][0]["function"]
    tools = published_forms.row("workplace", lesson, 0)["responses_create_params"]["tools"]
    row: dict[str, Any] = lesson.row("tool_call")
    row["responses_create_params"]["tools"] = tools
    row["expected_action"] = {"type": "function_call", **function}
    return Right(row, parse_task(row, "row", "t"), spoken([right]), spoken([wrong]))


def _reasoning_gym(rng: random.Random) -> Right:
    a, b = rng.randint(2, 9), rng.randint(10, 19)
    fields = {"question": f"Which one is larger, {a} or {b}?", "answer": str(b)}
    params = {"input": [{"role": "user", "content": fields["question"]}]}
    metadata = {"source_dataset": "gcd"}
    agent = {"name": "reasoning_gym"}
    row = {"responses_create_params": params, "agent_ref": agent, "metadata": metadata, **fields}
    return Right(row, parse_task(row, "row", "t"), (f"<answer>{b}</answer>",), (f"<answer>{a}</answer>",))


ANSWERED: dict[str, Callable[[random.Random], Right]] = {"tool_call": _tool_call, "reasoning_gym": _reasoning_gym}
