"""Turns of the SWE agent: which are actions, what is shown, and that only `submit` is graded."""

import json
from typing import Any

import pytest

from cascade_rl.engine.core.rollouts import Outcome
from cascade_rl.rl_stages.core.verdict import Verdict
from cascade_rl.rl_stages.environments.environment import End, Observation
from cascade_rl.rl_stages.environments.swe_agent import SweEpisode
from cascade_rl.rl_stages.environments.tool_output import MAX_OUTPUT


class FakeWorkspace:
    def __init__(self, output: str = "", exit_code: int = 0) -> None:
        self.result = output, exit_code
        self.commands: list[str] = []
        self.closed = False

    def act(self, command: str, limits: object) -> tuple[str, int]:
        self.commands.append(command)
        return self.result

    def grade(self) -> Verdict:
        return Verdict.scored(float("fix" in self.commands))

    def close(self) -> None:
        self.closed = True


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def shown(workspace: FakeWorkspace, text: str) -> str:
    answer = SweEpisode(workspace).step(text)  # type: ignore[arg-type]
    assert isinstance(answer, Observation)
    (message,) = answer.messages
    assert message["role"] == "tool"
    return message["content"]


def test_each_turn_runs_its_command_and_submit_is_graded() -> None:
    workspace = FakeWorkspace("a.py")
    episode = SweEpisode(workspace)  # type: ignore[arg-type]
    assert episode.step(f"Let us look. {call('bash', command='ls')}") == Observation.of_tools("a.py")
    xml = "<tool_call><function=bash><parameter=command>fix</parameter></function></tool_call>"
    assert isinstance(episode.step(xml), Observation)
    assert workspace.commands == ["ls", "fix"]
    assert episode.step(call("submit")) == End(Verdict.scored(1.0))
    episode.close()
    assert workspace.closed


@pytest.mark.parametrize(
    "text",
    [
        "ls",
        call("python", code="1"),
        call("bash", command="ls") * 2,
        call("bash"),
        call("bash", command=["ls"]),
        call("bash", command="ls\0"),
        call("bash", command="x" * 60_000),
        "<tool_call>{</tool_call>",
        "<tool_call>",
    ],
)
def test_a_turn_that_is_no_action_is_told_so_and_runs_nothing(text: str) -> None:
    workspace = FakeWorkspace()
    assert shown(workspace, text).startswith("error: ")
    assert workspace.commands == []


def test_an_action_inside_unfinished_reasoning_is_none() -> None:
    answer = SweEpisode(FakeWorkspace()).step(f"<think>{call('submit')}")  # type: ignore[arg-type]
    assert isinstance(answer, End)
    assert answer.verdict.outcome is Outcome.WRONG_FORMAT


def test_long_output_is_cut_in_its_middle_and_a_failure_shows_its_exit_code() -> None:
    command = call("bash", command="cat")
    long = shown(FakeWorkspace("a" * MAX_OUTPUT + "b" * 100), command)
    assert "[100 characters left out]" in long
    assert long.endswith("b" * 100)
    assert shown(FakeWorkspace("no such file", 2), command) == "no such file\nexit code 2"
