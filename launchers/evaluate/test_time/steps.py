"""A test-time method is a generator of steps: it yields what it asks of the model or of the task's grader, and gets the
answer. So it reads as the paper's algorithm, and the steps of many prompts run side by side (play.py)."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from cascade_rl.engine.core.rollouts import Rollout
from cascade_rl.rl_stages.core.messages import Message
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.core.verdict import Verdict
from cascade_rl.rl_stages.rewards.swe.repository import Repository


@dataclass(frozen=True)
class Ask:
    """`count` replies to a conversation."""

    messages: Sequence[Message]
    count: int = 1


@dataclass(frozen=True)
class Reply:
    """`answer` is what stands behind the reasoning; empty if the model was cut or never got there."""

    rollout: Rollout
    text: str
    answer: str


@dataclass(frozen=True)
class Grade:
    """The verdicts of the task's own grader."""

    replies: Sequence[Reply]


@dataclass(frozen=True)
class RunTests:
    """A `TestRun` of all tests of each repository, in boxes (rl_stages/rewards/swe/grading.py)."""

    repositories: Sequence[Repository]


Steps = Generator[Sequence[Ask] | Grade | RunTests, Any, Reply]
"""Ends with the reply that is handed in."""


def follow_up(task: Task, text: str) -> list[Message]:
    """The task's conversation with a text behind its last turn."""
    *before, last = task.messages
    return [*before, {**last, "content": f"{last['content']}\n\n{text}"}]


def numbered(kind: str, texts: Sequence[str]) -> str:
    return "\n\n".join(f"[{kind} {number}]\n{text}" for number, text in enumerate(texts, start=1))


def told(verdict: Verdict) -> str:
    """What a contest's judge tells a team: never what a hidden test is."""
    return "not judged" if verdict.score is None else f"score {verdict.score:g}, {verdict.outcome.value}"
