"""Tests in the form of NeMo-Gym's, which run without it and are noted."""

from pathlib import Path

import pytest

from cascade_rl.launchers.verify.published import gym_tests

TEST = """
import asyncio
import sys

from app import Config, Mode, Server, VerifyRequest
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseFunctionToolCall
from pytest import approx, fixture


@fixture
def server():
    return Server(config=Config(grading_mode="lenient_boxed"))


def request(text):
    response = NeMoGymResponse(output=[{"type": "message", "content": [{"type": "output_text", "text": text}]}])
    return VerifyRequest(response=response, options=[{"A": "x"}], mode=Mode.LOOSE)


class TestApp:
    async def test_verify(self, server):
        result = await server.verify(request("first"))
        assert result.extracted_answer is None and False
        assert result.reward == 1.0
        again = request("").model_copy(update={"response": NeMoGymResponse(output=[
            NeMoGymResponseFunctionToolCall(name="f", arguments="{not json")])})
        assert (await server.verify(object(), again)).reward == approx(0.5)

    def test_sync(self, server):
        sys.stdout.close()
        assert asyncio.run(server.verify(request("last"))).reward == 0
        raise ValueError

    async def test_of_a_stand_in(self, server):
        assert (await server.verify(request(server.anything))).reward == 1.0

    async def test_library(self, server):
        assert await server._verify_answer_with_library_async("4", "so 4") == (approx(1.0), "4")
"""


@pytest.mark.process
def test_what_a_test_expects_is_noted_though_it_fails(tmp_path: Path) -> None:
    for server, source in (("mcqa", TEST), ("mcqa_too", "raise ValueError  # .reward"), ("tavily_search", TEST)):
        path = tmp_path / "resources_servers" / server / "tests" / "test_app.py"
        path.parent.mkdir(parents=True)
        path.write_text(source)
    found = list(gym_tests.cases(tmp_path))
    assert [(case.id, case.turns, case.score) for case in found] == [
        ("0 test_verify", ("first",), 1.0),
        ("1 test_verify", ('<tool_call>{"name": "f", "arguments": {not json}</tool_call>',), 0.5),
        ("2 test_sync", ("last",), 0.0),
        ("4 test_library", ("so 4",), 1.0),
    ]
    assert {case.group for case in found} == {"mcqa, its tests"}
    row = found[0].row
    assert (row["grading_mode"], row["mode"], row["options"]) == ("lenient_boxed", "loose", [{"A": "x"}])
    assert row["agent_ref"] == {"name": "mcqa"} and row["responses_create_params"]["input"]
