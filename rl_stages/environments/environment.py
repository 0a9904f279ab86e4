"""What a multi-turn domain is: episodes that answer the model's turns and, at their end, say what they were worth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from cascade_rl.rl_stages.core.verdict import Verdict

if TYPE_CHECKING:
    from cascade_rl.rl_stages.core.messages import Message
    from cascade_rl.rl_stages.core.task import Task


@dataclass(frozen=True)
class Observation:
    """What the model is shown after its turn."""

    messages: tuple[Message, ...]

    @classmethod
    def of_tools(cls, *contents: str) -> Observation:
        """One message for each call of the turn. A lone surrogate, which has no ids, is shown as "?"."""
        texts = (content.encode(errors="replace").decode() for content in contents)
        return cls(tuple({"role": "tool", "content": text} for text in texts))


@dataclass(frozen=True)
class End:
    """The model's turn was its last; the verdict is on the state that it leaves."""

    verdict: Verdict


class Episode(Protocol):
    """One sample's world; used by one thread at a time, not always by the same."""

    def step(self, text: str) -> Observation | End:
        """Acts on the model's turn, decoded without its stop token. It may block. Whatever it raises makes the sample
        an infrastructure failure: what the model did wrong is an observation or a verdict, never an exception."""
        ...

    def close(self) -> None:
        """Ends what the episode started, also when it was cut short."""
        ...


class Environment(Protocol):
    """Makes the episodes of one domain.

    concurrency   steps, each in a thread of its own, that may run at once
    step_seconds  a step that takes longer, the first with its `start`, makes its sample an infrastructure failure
    """

    concurrency: int
    step_seconds: float

    def start(self, task: Task) -> Episode:
        """A new world for one sample of `task`; called, as the first part of its first step, after the first turn."""
        ...

    def close(self) -> None:
        """Ends what the environment started."""
        ...
