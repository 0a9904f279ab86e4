"""The interface of a multi-turn domain: episodes answer the model's turns and, at their end, score the sample."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
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
        """One message for each call of the turn. A lone surrogate has no token ids and is shown as "?"."""
        texts = (content.encode(errors="replace").decode() for content in contents)
        return cls(tuple({"role": "tool", "content": text} for text in texts))


@dataclass(frozen=True)
class End:
    """The episode is over. The verdict is on its final state."""

    verdict: Verdict


class Episode(Protocol):
    """The world of one sample. One thread uses it at a time, not always the same thread."""

    def step(self, text: str) -> Observation | End:
        """Acts on the model's turn, decoded without its stop token. It may block.

        An exception makes the sample an infrastructure failure. A mistake of the model is therefore an observation or a
        verdict, never an exception.
        """
        ...

    def close(self) -> None:
        """Ends what the episode started. It is also called if the episode was cut short."""
        ...


class Environment(Protocol):
    """Makes the episodes of one domain.

    concurrency   steps that may run at once, each in its own thread
    step_seconds  deadline of a step; that of the first step includes `start`. A sample whose step takes longer is an
                  infrastructure failure
    """

    concurrency: int
    step_seconds: float

    def start(self, task: Task) -> Episode:
        """A new world for one sample of `task`. Called after the model's first turn, as part of the first step."""
        ...

    def close(self) -> None:
        """Ends what the environment started."""
        ...


def played(environment: Environment, task: Task, turns: Sequence[str]) -> Verdict | None:
    """The verdict on an episode in which the model says `turns`; None if they end before it does."""
    with closing(environment.start(task)) as episode:
        for turn in turns:
            answer = episode.step(turn)
            if isinstance(answer, End):
                return answer.verdict
    return None
