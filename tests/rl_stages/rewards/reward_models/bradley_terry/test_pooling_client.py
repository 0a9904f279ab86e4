"""A reward model behind a server that speaks vLLM's pooling protocol; vLLM's own classes check both directions."""

from collections.abc import Sequence
from typing import Any

import pytest

from cascade_rl.rl_stages.rewards.reward_models.bradley_terry.conversation import Conversation
from cascade_rl.rl_stages.rewards.reward_models.bradley_terry.pooling_client import PoolingClient
from cascade_rl.rl_stages.rewards.reward_models.server_client import JudgeFailure
from tests.rl_stages.rewards.reward_models.fake_judge import FakeJudge, fake_judge

CONVERSATIONS: list[Conversation] = [(({"role": "user", "content": "Hi"},), answer) for answer in ("a", "bb", "ccc")]


def score(server: FakeJudge, conversations: Sequence[Conversation] = CONVERSATIONS) -> list[float]:
    root = server.url.removesuffix("/v1")
    client = PoolingClient(root, "reward", 8, deadline_seconds=300, retries=1, concurrency=20)
    assert client.concurrency == 3  # groups of 8, of which 20 questions are asked at once
    try:
        return client.score(conversations)
    finally:
        client.close()


def pooled(data: Any) -> bytes:
    from vllm.entrypoints.pooling.pooling.protocol import PoolingResponse, PoolingResponseData
    from vllm.entrypoints.serve.engine.protocol import UsageInfo

    response = PoolingResponse(model="reward", data=[PoolingResponseData(index=0, data=data)], usage=UsageInfo())
    return response.model_dump_json().encode()


@pytest.mark.slow  # imports vLLM
@pytest.mark.parametrize("tokens", [False, True], ids=["sequence classifier", "score of each token"])
def test_the_reward_is_what_the_model_says_at_the_end_before_any_sigmoid(tokens: bool) -> None:
    from vllm.entrypoints.pooling.pooling.protocol import PoolingChatRequest

    def reply(body: dict[str, Any]) -> bytes:
        asked = PoolingChatRequest.model_validate(body)
        assert asked.model == "reward" and not asked.add_generation_prompt
        assert asked.to_pooling_params().use_activation is False
        *prompt, answer = body["messages"]
        assert prompt == [{"role": "user", "content": "Hi"}] and answer["role"] == "assistant"
        reward = -7.5 - len(answer["content"])
        return pooled([[3.0], [reward]] if tokens else [reward])

    with fake_judge() as server:
        server.reply = reply
        assert score(server) == [-8.5, -9.5, -10.5]
        assert server.paths == ["/pooling"] * 3


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (b'{"data": [{"data": [0.1, 0.9]}]}', "expected one reward of a pooling model, found"),
        (b'{"data": [{"data": []}]}', "expected one reward of a pooling model, found"),
        (b'{"choices": []}', "expected one reward of a pooling model, found"),
        (b'{"data": [{"data": [NaN]}]}', "expected a finite reward, found"),
        (400, "HTTP 400"),
    ],
)
def test_a_reply_without_a_reward_is_a_failure(reply: bytes | int, message: str) -> None:
    with fake_judge() as server:
        server.reply = lambda _: reply
        with pytest.raises(JudgeFailure, match=message):
            score(server)
