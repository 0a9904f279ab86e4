"""A generated exercise: the row that a prompt becomes, and the answers that demonstrate it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]
Message = dict[str, Any]
Answer = Callable[[random.Random], str | list[Message]]


@dataclass(frozen=True)
class Lesson:
    """One distinct prompt.

    prompt  what the user says
    fields  what the verifier reads
    right   draws an answer that the verifier passes: its text, or, of an episode, the turns of model and tools
    wrong   draws an answer that is as well formed, whether or not it passes
    """

    prompt: str
    fields: Row
    right: Answer
    wrong: Answer

    def row(self, domain: str) -> Row:
        """The NeMo-Gym row."""
        message = {"role": "user", "content": self.prompt}
        return {"responses_create_params": {"input": [message]}, "agent_ref": {"name": domain}, **self.fields}

    def demonstration(self, accuracy: float, rng: random.Random) -> Row:
        """The SFT row: right with probability `accuracy`, to leave reinforcement learning some room."""
        answer = (self.right if rng.random() < accuracy else self.wrong)(rng)
        turns = [{"role": "assistant", "content": answer}] if isinstance(answer, str) else answer
        return {"messages": [{"role": "user", "content": self.prompt}, *turns]}


def calling(name: str, **arguments: str) -> Message:
    """The model's turn that makes one call."""
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}


def showing(content: str) -> Message:
    """What the call of the turn before it gave."""
    return {"role": "tool", "content": content}
