"""A Bradley-Terry model behind vLLM's pooling API (`vllm serve MODEL --runner pooling`), of any family and size."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, Unpack

from cascade_rl.rl_stages.rewards.reward_models.bradley_terry.conversation import Conversation, as_messages
from cascade_rl.rl_stages.rewards.reward_models.server_client import Limits, ServerClient, UnreadableReply


class PoolingClient:
    """The model at `url`, such as "http://reward-model:8000", asked at /pooling, which is beside /v1 and not in it. The
    server renders the conversations with its model's own chat template. Safe to call from many threads."""

    def __init__(self, url: str, model: str, group_size: int, **limits: Unpack[Limits]) -> None:
        self._model = model
        self._server = ServerClient(f"{url.rstrip('/')}/pooling", **limits)
        self.concurrency = -(-self._server.concurrency // group_size)

    def score(self, conversations: Sequence[Conversation]) -> list[float]:
        """See `RewardScorer`."""
        return self._server.ask([self._body(conversation) for conversation in conversations], _reward)

    def close(self) -> None:
        """See `RewardScorer`."""
        self._server.close()

    def _body(self, conversation: Conversation) -> dict[str, Any]:
        # without use_activation=false, vLLM answers with the sigmoid of the reward
        return {"model": self._model, "messages": as_messages(conversation), "use_activation": False}


def _reward(reply: bytes) -> float:
    """`data` is [1] from a sequence classifier, [tokens, 1] from a model that scores tokens: the last one counts."""
    try:
        (pooled,) = json.loads(reply)["data"]
        values = pooled["data"]
        (value,) = values[-1] if isinstance(values[-1], list) else values
        reward = float(value)
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        raise UnreadableReply("expected one reward of a pooling model") from None
    if not math.isfinite(reward):
        raise UnreadableReply("expected a finite reward")
    return reward
