"""A generated exercise: a prompt, its row for the verifier, and answers that demonstrate it."""

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
    right   samples an answer that the verifier passes: a text or, for an episode, the turns of model and tools
    wrong   samples an answer that is equally well formed, whether or not it passes
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
        """The SFT row. Its answer is right with probability `accuracy`, to leave room for reinforcement learning."""
        answer = (self.right if rng.random() < accuracy else self.wrong)(rng)
        turns = [{"role": "assistant", "content": answer}] if isinstance(answer, str) else answer
        return {"messages": [{"role": "user", "content": self.prompt}, *turns]}


def calling(name: str, **arguments: str) -> Message:
    """A turn of the model that makes one call."""
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}


def showing(content: str) -> Message:
    """The output of the call in the turn before."""
    return {"role": "tool", "content": content}
