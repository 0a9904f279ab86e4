"""What a Bradley-Terry model is asked about, and what answers."""

from collections.abc import Sequence
from typing import Any, Protocol

from cascade_rl.rl_stages.core.messages import Message
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.rewards.reward_models.bradley_terry.shaping import scored_text

Conversation = tuple[Sequence[Message], str]
"""Messages, and the part of an answer to them that is scored."""


class RewardScorer(Protocol):
    """A Bradley-Terry model: processes of our own (`BradleyTerryScorer`) or a server (`PoolingClient`).

    concurrency  calls, of a group each, that it works on at once; further calls wait
    """

    concurrency: int

    def score(self, conversations: Sequence[Conversation]) -> list[float]:
        """One reward for each, in their order. It may be any real number. Raises JudgeFailure."""
        ...

    def close(self) -> None:
        """Ends what it started; calls in flight raise JudgeFailure. It can be called more than once."""
        ...


def conversations(task: Task, texts: Sequence[str]) -> list[Conversation]:
    """The task with each of the answers, without their reasoning."""
    return [(task.messages, scored_text(text)) for text in texts]


def as_messages(conversation: Conversation) -> list[dict[str, Any]]:
    """The messages, of which the last is the answer."""
    messages, answer = conversation
    return [*map(dict, messages), {"role": "assistant", "content": answer}]
